/* The page as a whole: what is shown now, keys and buttons, and when it is drawn. */

const SECONDS = 12; // that a run takes to play, at speed 1

/* The trees: edges of one as [path, hop]. */
class Trees {
  constructor(data) {
    this.data = data;
    this.first = starts(data.treeEdges);
    this.path = starts(data.pathSizes);
    this.known = new Map();
  }

  edges(tree) {
    if (this.known.has(tree)) return this.known.get(tree);
    const found = [];
    for (let e = this.first[tree]; e < this.first[tree + 1]; e++) {
      found.push([this.data.pathNodes.subarray(this.path[e], this.path[e + 1]), this.data.treeHops[e]]);
    }
    this.known.set(tree, found);
    return found;
  }

  height(tree) {
    return this.edges(tree).reduce((most, [, hop]) => Math.max(most, hop), 0);
  }
}

class App {
  constructor(data) {
    this.data = data;
    this.state = { playing: false, speed: 1, hovered: null, folded: false };
    this.trees = data.trees ? new Trees(data) : null;
    this.cuts = this.readCuts();
    this.fabric = new Fabric(byId("fabric"), data, this);
    this.run = data.run ? new Run(data, this.fabric.kindOf) : null;
    const tiled = this.run && this.run.blocks < this.run.names.length;
    this.kinds = [...(tiled ? ["tiles"] : []), ...(this.run && this.run.notes[0] ? [] : ["links"]), "blocks"];
    this.usual = this.chooseUsual();
    this.timeline = this.run ? new Timeline(byId("time"), this.run, this) : null;
    byId("time-frame").classList.toggle("empty", !this.run);
    byId("no-run").textContent = data.whyNoRun;
    this.pictures = [this.fabric, this.timeline].filter(Boolean);
    this.panel = new Panel(data, this);
    this.wire();
    this.restore();
  }

  /* What a page shows at first: rows of links, where all bars are here; the first colours that tell bars
     apart; one of all that is alike. */
  chooseUsual() {
    const { run, data } = this;
    const several = (mode) => run.categories(mode).used.length > 1;
    return {
      tree: -1, hops: Infinity, allTrees: false, cut: -1, heat: true, now: 0, folded: Boolean(data.folded),
      theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
      rows: this.kinds[0],
      colour: (run && run.modes.find(several)) || "phase",
    };
  }

  /* What the address says. */
  restore() {
    const { fabric, time, theme, selected, ...rest } = readHash(this);
    Object.assign(this.state, rest, { selected: null });
    this.setTheme(theme);
    this.fit();
    this.select(selected);
    if (fabric) this.fabric.setWindow(fabric);
    if (time && this.timeline) this.timeline.setWindow(time);
    this.tell();
  }

  keep() {
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => writeHash(this), 250);
  }

  readCuts() {
    const { cutSizes, cutNodes } = this.data;
    const first = cutSizes ? starts(cutSizes) : [0];
    return Array.from(cutSizes || [], (_, k) => new Set(cutNodes.subarray(first[k], first[k + 1])));
  }

  get palette() {
    return PALETTES[this.theme];
  }

  get theme() {
    return this.state.theme;
  }

  setTheme(theme) {
    this.state.theme = theme;
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "light" : "dark";
  }

  fit() {
    for (const picture of this.pictures) picture.fit();
  }

  /* Another size: what was not moved by hand fits again. */
  resize() {
    for (const picture of this.pictures) (picture.moved ? picture.refresh() : picture.fit());
  }

  /* Once in the next frame, however often it is asked for. */
  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame((time) => {
      this.waiting = false;
      this.step(time);
      this.draw();
    });
  }

  draw() {
    for (const picture of this.pictures) picture.draw();
    if (!this.state.playing) this.keep();
  }

  step(time) {
    if (!this.state.playing) return;
    const passed = this.last === undefined ? 0 : time - this.last;
    this.last = time;
    this.state.now += (passed / 1000 / SECONDS) * this.run.time * this.state.speed;
    if (this.state.now >= this.run.time) {
      this.state.now = this.run.time;
      this.play(false);
    } else this.redraw();
  }

  play(wanted) {
    if (!this.run) return;
    if (wanted && this.state.now >= this.run.time) this.state.now = 0;
    this.state.playing = wanted;
    this.last = undefined;
    this.tell();
  }

  goTo(time) {
    if (!this.run) return;
    this.state.now = clamp(time, 0, this.run.time);
    this.tell();
  }

  hover(thing, event) {
    const before = this.state.hovered;
    this.state.hovered = thing;
    const tip = byId("tip");
    tip.hidden = !thing;
    if (thing && event) {
      tip.textContent = this.panel.describe(thing).map((row) => row.join(" ")).join("\n");
      const [w, h] = [tip.offsetWidth, tip.offsetHeight];
      tip.style.left = `${clamp(event.clientX + 14, 4, innerWidth - w - 4)}px`;
      const below = event.clientY + 16;
      tip.style.top = `${Math.max(4, below + h > innerHeight ? event.clientY - h - 10 : below)}px`;
    }
    if (JSON.stringify(before) === JSON.stringify(thing)) return;
    this.panel.show(thing || this.state.selected);
    this.redraw();
  }

  select(thing, reveal = false) {
    this.state.selected = thing;
    const links = this.linksOf(thing);
    this.selectedWays = this.run && links.size ? this.run.waysOver(links) : null;
    if (this.timeline) this.timeline.stale = true;
    if (reveal && thing && thing.kind === "bar") this.timeline.show(thing.index);
    this.panel.show(thing);
    this.panel.legend();
    this.redraw();
  }

  /* Whether a bar stands out: of all, of what is selected, or of the tree that is shown. */
  stands(bar) {
    const { run, state, data } = this;
    if (this.selectedWays) return this.selectedWays[data.way[bar]] === 1;
    return !run.trees || state.tree < 0 || data.step[bar] === data.trees[state.tree][0];
  }

  linksOf(thing) {
    const { linkClass, tail, head } = this.data;
    const { kind, index } = thing || {};
    if (kind === "pair") return new Set(this.fabric.linksIn(index));
    const within = {
      class: (e) => linkClass[e] === index,
      node: (e) => tail[e] === index || head[e] === index,
    }[kind];
    return new Set(within ? [...linkClass.keys()].filter(within) : []);
  }

  showTree(tree) {
    if (!this.trees) return;
    const count = this.data.trees.length;
    this.change({ tree: ((tree % count) + count) % count, allTrees: false, hops: Infinity });
  }

  showAllTrees() {
    if (!this.trees) return;
    this.change({ tree: -1, allTrees: !this.state.allTrees });
  }

  changeHops(by) {
    if (this.state.tree < 0) return;
    const height = this.trees.height(this.state.tree);
    this.change({ hops: clamp(Math.min(this.state.hops, height) + by, 1, height) });
  }

  nextCut() {
    if (!this.cuts.length) return;
    this.change({ cut: this.state.cut + 1 < this.cuts.length ? this.state.cut + 1 : -1 });
  }

  clear() {
    this.selectedWays = null;
    this.change({ tree: -1, allTrees: false, cut: -1, selected: null });
  }

  /* Another state; what is laid out in another way is fit in anew. */
  change(what) {
    Object.assign(this.state, what);
    if (what.theme) this.setTheme(what.theme);
    if ("folded" in what) this.fabric.fit();
    if (what.rows) this.timeline.fit();
    for (const picture of this.pictures) picture.stale = true;
    this.tell();
  }

  /* Buttons and texts as the state is. */
  tell() {
    const { state, data } = this;
    const { allTrees, heat, folded, playing } = state;
    const pressed = { "tree-all": allTrees, heat, cut: state.cut >= 0, folded, play: playing };
    for (const [name, on] of Object.entries(pressed)) byId(name).setAttribute("aria-pressed", String(on));
    byId("play").textContent = playing ? "stop" : "play";
    const there = { "tree-controls": this.trees, "run-controls": this.run, cut: this.cuts.length, heat: this.fabric.heated, folded: data.folded };
    for (const [name, on] of Object.entries(there)) byId(name).hidden = !on;
    byId("rows").value = state.rows;
    byId("rows").disabled = this.kinds.length < 2;
    for (const option of byId("rows").options) option.hidden = option.disabled = !this.kinds.includes(option.value);
    byId("colour").value = state.colour;
    byId("by-tree").hidden = byId("by-tree").disabled = !this.run || !this.run.trees;
    byId("by-block").textContent = this.run && this.run.trees ? "trees" : "blocks";
    byId("tree-name").textContent = this.treeName();
    const facts = [...data.facts];
    if (data.treesNote) facts.push(["in the page", data.treesNote]);
    if (folded) facts.push(["drawn", data.folded.note]);
    if (state.tree >= 0) {
      const [number, root, phase, share] = data.trees[state.tree];
      facts.unshift(["tree", `${number}: ${phase}, root ${data.nodes[root]}, ${exact(share)} of the data`]);
    }
    fill(byId("facts"), facts);
    this.panel.legend();
    this.panel.show(state.hovered || state.selected);
    this.redraw();
  }

  treeName() {
    const { state, data } = this;
    if (!this.trees) return "";
    if (state.allTrees) return `all ${data.trees.length} trees`;
    if (state.tree < 0) return "no tree";
    const hops = Number.isFinite(state.hops) ? `, to hop ${state.hops}` : "";
    return `tree ${state.tree + 1} of ${data.trees.length}${hops}`;
  }

  wire() {
    const keys = {
      "tree-before": "[", "tree-after": "]", "tree-all": "a", "hop-less": ",", "hop-more": ".", heat: "h", cut: "c",
      folded: "g", fit: "f", play: " ", theme: "d", help: "?",
    };
    for (const [name, key] of Object.entries(keys)) byId(name).addEventListener("click", () => this.press(key));
    const choose = (name, act) => byId(name).addEventListener("change", (event) => act(event.target.value));
    choose("speed", (value) => { this.state.speed = Number(value); });
    choose("rows", (value) => this.change({ rows: value }));
    choose("colour", (value) => this.change({ colour: value }));
    addEventListener("hashchange", () => this.restore());
    byId("fabric").addEventListener("keydown", (event) => this.moveFabric(event));
    byId("time").addEventListener("keydown", (event) => this.moveTimeline(event));
    document.addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (typing || byId("keys").open || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === " " && event.target instanceof HTMLButtonElement) return;
      if (this.press(event.key)) event.preventDefault();
    });
    new ResizeObserver(() => this.resize()).observe(byId("pictures"));
  }

  press(key) {
    const { state } = this;
    const next = (list, value) => list[(list.indexOf(value) + 1) % list.length];
    const acts = {
      "[": () => this.showTree(state.tree < 0 ? -1 : state.tree - 1),
      "]": () => this.showTree(state.tree + 1),
      a: () => this.showAllTrees(),
      ",": () => this.changeHops(-1),
      ".": () => this.changeHops(1),
      h: () => this.change({ heat: !state.heat }),
      g: () => this.data.folded && this.change({ folded: !state.folded }),
      r: () => this.run && this.change({ rows: next(this.kinds, state.rows) }),
      b: () => this.run && this.change({ colour: next(this.run.modes, state.colour) }),
      c: () => this.nextCut(),
      f: () => this.fit(),
      d: () => this.change({ theme: this.theme === "dark" ? "light" : "dark" }),
      " ": () => this.play(!state.playing),
      Home: () => this.goTo(0),
      End: () => this.run && this.goTo(this.run.time),
      "/": () => byId("search").focus(),
      "?": () => byId("keys").showModal(),
      Escape: () => this.clear(),
    };
    if (!acts[key]) return false;
    acts[key]();
    return true;
  }

  moveFabric(event) {
    const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const factor = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
    const { fabric } = this;
    if (!factor && !steps[event.key]) return;
    if (factor) fabric.zoom(factor, fabric.width / 2, fabric.height / 2);
    else fabric.moveBy(...steps[event.key]);
    event.preventDefault();
  }

  moveTimeline(event) {
    const { timeline, run, state } = this;
    if (!timeline) return;
    const middle = GUTTER + (timeline.width - GUTTER) / 2;
    const bar = state.selected && state.selected.kind === "bar" ? state.selected.index : -1;
    const count = run.start.length;
    const row = bar < 0 ? 0 : run.row[bar];
    const go = (index) => () => this.select({ kind: "bar", index }, true);
    const acts = {
      "+": () => timeline.zoomTime(1.25, middle),
      "=": () => timeline.zoomTime(1.25, middle),
      "-": () => timeline.zoomTime(0.8, middle),
      "}": () => timeline.zoomRows(1.25, AXIS),
      "{": () => timeline.zoomRows(0.8, AXIS),
      ArrowRight: go(Math.min(count - 1, bar + 1)),
      ArrowLeft: go(Math.max(0, bar - 1)),
      ArrowDown: go(run.first[Math.min(run.names.length - 1, row + 1)]),
      ArrowUp: go(run.first[Math.max(0, row - 1)]),
    };
    if (!acts[event.key] || !count) return;
    acts[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }
}

loadData(byId("data").textContent).then((data) => {
  byId("data").remove();
  window.forestcoll = new App(data);
  window.forestcoll.draw();
  document.documentElement.dataset.ready = "yes";
}, (error) => {
  byId("no-run").textContent = `This page cannot be shown: ${error.message}. It needs a browser of 2023 or later.`;
});
