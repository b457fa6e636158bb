"use strict";
/* What is shown, in the address: #tree=3&rows=blocks&now=12.5. Links to a page keep it; what is no
   such thing, is out of range or of another page is left aside. */

const CHOICES = { rows: ["links", "blocks"], colour: ["phase", "kind", "tree"], theme: ["light", "dark"] };

function writeHash(app) {
  const { state, fabric, timeline } = app;
  const words = new URLSearchParams();
  const put = (name, value, usual) => { if (value !== usual) words.set(name, String(value)); };
  put("tree", state.tree, -1);
  put("hops", state.hops, Infinity);
  put("all", Number(state.allTrees), 0);
  put("cut", state.cut, -1);
  put("loads", Number(state.heat), 1);
  put("folded", Number(state.folded), app.usual.folded);
  put("now", Number(state.now.toPrecision(7)), 0);
  put("theme", state.theme, app.usual.theme);
  if (app.run) put("rows", state.rows, app.usual.rows);
  if (app.run) put("colour", state.colour, app.usual.colour);
  if (state.selected) words.set("selected", `${state.selected.kind}.${state.selected.index}`);
  const list = (name, numbers) => words.set(name, numbers.map((n) => Number(n.toPrecision(6))).join());
  if (fabric.moved) list("fabric", fabric.window());
  if (timeline && timeline.moved) list("time", timeline.window());
  const text = String(words);
  if (text === location.hash.slice(1)) return;
  history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

/* The state that the address asks for, as far as the page has it. */
function readHash(app) {
  const words = new URLSearchParams(location.hash.slice(1));
  const { data, run, usual } = app;
  const below = (text, count) => (/^\d{1,9}$/.test(text || "") && Number(text) < count ? Number(text) : -1);
  const flag = (name, otherwise) => ({ 0: 0, 1: 1 }[words.get(name)] ?? otherwise);
  const choice = (name) => (CHOICES[name].includes(words.get(name)) ? words.get(name) : usual[name]);
  const numbers = (name, count) => {
    const found = (words.get(name) || "").split(",").map((text) => (text.trim() ? Number(text) : NaN));
    return found.length === count && found.every((n) => Number.isFinite(n) && Math.abs(n) < 1e9) ? found : null;
  };
  const counts = {
    node: data.nodes.length, pair: app.fabric.pairs.length, class: data.classes.length, bar: run ? run.start.length : 0,
  };
  const [kind, number] = (words.get("selected") || "").split(".");
  const index = Object.hasOwn(counts, kind) ? below(number, counts[kind]) : -1;
  const [now] = numbers("now", 1) || [0];
  const tree = app.trees ? below(words.get("tree"), data.trees.length) : -1;
  const colour = choice("colour");
  return {
    tree,
    hops: below(words.get("hops"), 1e9) > 0 ? Number(words.get("hops")) : Infinity,
    allTrees: tree < 0 && app.trees !== null && flag("all", 0) === 1,
    cut: below(words.get("cut"), app.cuts.length),
    heat: flag("loads", 1) === 1,
    folded: Boolean(data.folded) && flag("folded", usual.folded) === 1,
    now: run ? Math.max(0, Math.min(run.time, now)) : 0,
    theme: choice("theme"),
    rows: run && run.note ? "blocks" : choice("rows"),
    colour: run && run.modes.includes(colour) ? colour : usual.colour,
    selected: index < 0 ? null : { kind, index },
    fabric: numbers("fabric", 3),
    time: numbers("time", 4),
  };
}
