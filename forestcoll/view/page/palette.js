"use strict";
/* Colours of the canvases, light and dark. Texts have a contrast of 4.5 at least to what they stand on. */

const PALETTES = {
  light: {
    page: "#ffffff", text: "#1f2328", muted: "#57606a", box: "#f6f8fa", boxLine: "#afb8c1",
    gpu: "#ddf4ff", gpuLine: "#0969da", switch: "#fff8c5", switchLine: "#9a6700",
    link: "#8797aa", faint: "#d8dee4", cut: "#8250df", cutFill: "rgba(130,80,223,0.16)",
    active: "#0b7f79", select: "#cf222e", stripe: "#f6f8fa",
    move: "#4b8bd6", local: "#c58b1b", other: "#aab4bf",
  },
  dark: {
    page: "#0d1117", text: "#e6edf3", muted: "#9da7b1", box: "#161b22", boxLine: "#444c56",
    gpu: "#12304f", gpuLine: "#58a6ff", switch: "#3b2e0a", switchLine: "#d4a72c",
    link: "#7d8da1", faint: "#262c34", cut: "#a371f7", cutFill: "rgba(163,113,247,0.22)",
    active: "#39c5bb", select: "#ff7b72", stripe: "#12171e",
    move: "#3f7fcf", local: "#b88218", other: "#4a535e",
  },
};

/* From idle to always busy. */
const HEAT = ["#8797aa", "#a58f6b", "#d18a2c", "#d9622b", "#cf222e"];
/* Hops of a tree. */
const DEPTH = {
  light: ["#0969da", "#9a6700", "#bf3989", "#57606a", "#8250df"],
  dark: ["#58a6ff", "#d4a72c", "#ee77b5", "#9da7b1", "#b388f9"],
};

function heatClass(percent) {
  return Math.max(0, Math.min(HEAT.length - 1, Math.floor((percent / 100) * HEAT.length - 1e-9)));
}

/* A hue of its own for tree number k. */
function treeColour(k, dark) {
  return `hsl(${(k * 137.508) % 360} ${dark ? "60% 62%" : "62% 42%"})`;
}
