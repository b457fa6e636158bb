/* Colours, light and dark. Texts have a contrast of 4.5 at least to what they stand on.

   Each says one thing. Kinds (phases, bandwidths, trees) are hues that differ for the colour-blind too;
   how busy a link is, is one hue from pale to deep: full links are what a good schedule wants. What is
   selected has the colour of the text, around what it has anyway. */

const PALETTES = {
  light: {
    page: "#ffffff", text: "#1f2328", muted: "#57606a", box: "#f6f8fa", boxLine: "#afb8c1",
    gpu: "#ddf4ff", gpuLine: "#0969da", switch: "#fff8c5", switchLine: "#9a6700",
    link: "#8797aa", faint: "#d8dee4", cut: "#8250df", cutFill: "rgba(130,80,223,0.16)",
    select: "#1f2328", stripe: "#f6f8fa", other: "#d3d9df",
    heat: ["#c3ccd6", "#98bdc1", "#62a5a6", "#2b8b88", "#006b66"],
    phases: { reduce: "#e08e0b", broadcast: "#2878c0", copy: "#2a9d76", "local work": "#8b7aa8", producer: "#e79bec", "in the plan": "#456be1", consumer: "#aad1a1" },
    kinds: ["#2878c0", "#e08e0b", "#2a9d76", "#b5519b", "#7fb2de", "#8a6d1c"],
    hops: ["#c2388e", "#2b7a5f", "#7044d0", "#57606a", "#9a4a24"],
  },
  dark: {
    page: "#0d1117", text: "#e6edf3", muted: "#9da7b1", box: "#161b22", boxLine: "#444c56",
    gpu: "#12304f", gpuLine: "#58a6ff", switch: "#3b2e0a", switchLine: "#d4a72c",
    link: "#7d8da1", faint: "#262c34", cut: "#a371f7", cutFill: "rgba(163,113,247,0.22)",
    select: "#ffffff", stripe: "#12171e", other: "#343c46",
    heat: ["#3c4753", "#37636a", "#2f8583", "#2aaa9d", "#3fd6c0"],
    phases: { reduce: "#f0a63a", broadcast: "#4b9be0", copy: "#3fb98e", "local work": "#a08fc0", producer: "#c94a92", "in the plan": "#2c44b5", consumer: "#75753a" },
    kinds: ["#4b9be0", "#f0a63a", "#3fb98e", "#d583bf", "#9cc9ee", "#977a2a"],
    hops: ["#f07fc0", "#5cc8a4", "#b095fb", "#9da7b1", "#d9976c"],
  },
};

function heatClass(percent) {
  const most = PALETTES.light.heat.length;
  return clamp(Math.floor((percent / 100) * most - 1e-9), 0, most - 1);
}

/* A hue of its own for tree number k. */
function treeColour(k, dark) {
  return `hsl(${(k * 137.508) % 360} ${dark ? "60% 62%" : "62% 42%"})`;
}
