/* What is shown, in the address: #tree=3&rows=blocks&now=12.5, where it is not as usual. A copied link
   shows the same; what is no such thing, is out of range or of another page is left aside. */


function writeHash(app) {
  const { state, fabric, timeline } = app;
  const words = new URLSearchParams();
  for (const [name, usual] of Object.entries(app.usual)) if (state[name] !== usual) words.set(name, state[name]);
  if (state.selected) words.set("selected", `${state.selected.kind}.${state.selected.index}`);
  for (const [name, picture] of [["fabric", fabric], ["time", timeline]]) {
    if (picture && picture.moved) words.set(name, picture.window().map((n) => round(n, 6)).join());
  }
  const text = String(words);
  if (text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

/* The state that the address asks for, as far as the page has it. */
function readHash(app) {
  const words = new URLSearchParams(location.hash.slice(1));
  const { data, run, usual } = app;
  const last = (list) => (list ? list.length - 1 : -1);
  const ranges = { tree: [0, last(data.trees)], hops: [1, 1e9], cut: [0, last(app.cuts)], now: [0, run ? run.time : 0] };
  const names = { rows: app.kinds, theme: ["light", "dark"], colour: run ? run.modes : [] };
  const read = (name) => {
    const [text, otherwise] = [words.get(name) || "", usual[name]];
    if (typeof otherwise === "boolean") return { true: true, false: false }[text] ?? otherwise;
    if (names[name]) return names[name].includes(text) ? text : otherwise;
    const [least, most] = ranges[name];
    const number = /^\d{1,9}(\.\d*)?$/.test(text) ? Number(text) : -1;
    return number >= least && number <= most && (name === "now" || Number.isInteger(number)) ? number : otherwise;
  };
  const numbers = (name, count) => {
    const found = (words.get(name) || "").split(",").map((text) => (text.trim() ? Number(text) : NaN));
    return found.length === count && found.every((n) => Math.abs(n) < 1e9) ? found : null;
  };
  const state = Object.fromEntries(Object.keys(usual).map((name) => [name, read(name)]));
  state.allTrees &&= app.trees !== null && state.tree < 0;
  state.folded &&= Boolean(data.folded);
  const counts = { node: data.nodes.length, pair: app.fabric.pairs.length, class: data.classes.length, bar: run ? run.start.length : 0 };
  const [, kind, index] = /^(node|pair|class|bar)\.(\d{1,9})$/.exec(words.get("selected")) || [];
  state.selected = Number(index) < counts[kind] ? { kind, index: Number(index) } : null;
  return { ...state, fabric: numbers("fabric", 3), time: numbers("time", 4) };
}
