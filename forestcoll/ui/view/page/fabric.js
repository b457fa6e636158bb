/* The fabric: boxes, nodes, links by how busy they are, trees, the limiting cut, what moves now.

   What stays the same while trees and the run go on is drawn once, into a picture of its own. */

const NODE = 0.3; // half the side of a GPU, in units of the layout
const STROKES = 256; // lines in one path: long paths take longer than their lines
const CROWD = 2000; // lines beyond which pixels are set one by one, which is quicker
const MOST_KINDS = 6; // of links by their bandwidth; the slower ones are one more with the last

class Fabric extends Picture {
  constructor(canvas, data, app) {
    super(canvas, app, {
      zoom: (factor, x, y) => this.zoom(factor, x, y),
      move: (dx, dy) => this.moveBy(dx, dy),
      press: (x, y) => app.select(this.hit(x, y)),
    });
    this.data = data;
    this.pairLinks();
    this.measureWidths();
    this.places = [false, true].map((folded) => this.place(folded));
  }

  zoom(factor, px, py) {
    const next = clamp(this.scale * factor, 0.5, 400);
    this.x = px - ((px - this.x) * next) / this.scale;
    this.y = py - ((py - this.y) * next) / this.scale;
    this.scale = next;
    this.moveBy(0, 0);
  }

  moveBy(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.moved = true;
    this.refresh();
  }

  /* Two directions of a link are one line; pairs[k] = [u, v, link u to v or -1, link v to u or -1]. */
  pairLinks() {
    const { tail, head, nodes } = this.data;
    const known = new Map();
    this.pairs = [];
    this.pairOf = new Uint32Array(tail.length);
    for (let e = 0; e < tail.length; e++) {
      const [low, high] = tail[e] < head[e] ? [tail[e], head[e]] : [head[e], tail[e]];
      const key = low * nodes.length + high;
      let k = known.get(key);
      if (k === undefined) {
        k = this.pairs.length;
        known.set(key, k);
        this.pairs.push([low, high, -1, -1]);
      }
      this.pairs[k][tail[e] === low ? 2 : 3] = e;
      this.pairOf[e] = k;
    }
  }

  /* The links of a line: one, or one each way. */
  linksIn(pair) {
    return this.pairs[pair].slice(2).filter((e) => e >= 0);
  }

  /* Where nodes stand; folded: each where the one stands that is drawn for it. */
  place(folded) {
    const { data } = this;
    if (!folded || !data.folded) return { x: data.x, y: data.y, size: data.size, boxes: data.boxes, hidden: () => false };
    const { twin, foldedX, foldedY } = data;
    const [x, y] = [foldedX, foldedY].map((at) => Float32Array.from(twin, (v) => at[v]));
    this.alike = new Uint32Array(twin.length);
    for (const v of twin) this.alike[v]++;
    return { ...data.folded, x, y, hidden: (v) => twin[v] !== v };
  }

  get placed() {
    return this.places[Number(this.app.state.folded)];
  }

  /* How many nodes are drawn. */
  get shown() {
    return this.data.nodes.reduce((sum, _, v) => sum + !this.placed.hidden(v), 0);
  }

  /* Per link its kind, the fastest first; per pair the look of its line: width class 0 to 3, by bandwidth,
     kind, and how busy its busier direction is. */
  measureWidths() {
    const { classes, linkClass, classKind } = this.data;
    const rates = classes.map((figures) => toNumber(figures[0]));
    const percents = classes.map((figures) => (figures.length > 2 ? toNumber(figures[2]) : -1));
    const fastest = Math.max(...rates);
    this.kindNames = this.data.kinds;
    this.kindOf = Uint8Array.from(linkClass, (c) => classKind[c]);
    this.rates = Float64Array.from(linkClass, (c) => rates[c]);
    this.looks = this.pairs.map((_, k) => {
      const links = this.linksIn(k);
      const rate = Math.max(...links.map((e) => this.rates[e]));
      const percent = Math.max(...links.map((e) => this.percent(e, percents)));
      return {
        width: Math.min(3, Math.floor(4 * Math.sqrt(rate / fastest))),
        kind: Math.min(...links.map((e) => this.kindOf[e])),
        heat: percent < 0 ? -1 : heatClass(percent),
      };
    });
    this.heated = this.looks.some((look) => look.heat >= 0);
  }

  percent(link, percents) {
    const stated = percents[this.data.linkClass[link]];
    return stated < 0 && this.data.linkUse ? this.data.linkUse[link] : stated;
  }

  fit() {
    const [width, height] = this.placed.size;
    this.resized();
    this.scale = clamp(Math.min((this.width - 24) / width, (this.height - 24) / height), 1e-3, 64);
    this.x = (this.width - width * this.scale) / 2;
    this.y = (this.height - height * this.scale) / 2;
    this.moved = false;
    this.refresh();
  }

  /* What is in the middle, in units of the layout, and pixels for each unit. */
  window() {
    const { width, height, scale } = this;
    return [(width / 2 - this.x) / scale, (height / 2 - this.y) / scale, scale];
  }

  setWindow([x, y, scale]) {
    this.scale = clamp(scale, 0.5, 400);
    [this.x, this.y] = [this.width / 2 - x * this.scale, this.height / 2 - y * this.scale];
    this.moveBy(0, 0);
  }

  /* The pixel of a place of the layout. */
  pixel(x, y) {
    return [x * this.scale + this.x, y * this.scale + this.y];
  }

  at(node) {
    return this.pixel(this.placed.x[node], this.placed.y[node]);
  }

  /* What is at a place: {kind: "node" | "pair", index}, or null. */
  hit(px, py) {
    const { data, placed, scale } = this;
    const reach = Math.max(NODE, 6 / scale);
    const [x, y] = [(px - this.x) / scale, (py - this.y) / scale];
    for (let v = 0; v < data.nodes.length; v++) {
      const wide = data.gpu[v] ? reach : reach * 1.7;
      if (!placed.hidden(v) && Math.abs(placed.x[v] - x) < wide && Math.abs(placed.y[v] - y) < reach) {
        return { kind: "node", index: v };
      }
    }
    let [best, distance] = [-1, (6 / scale) ** 2];
    this.pairs.forEach(([u, v], k) => {
      if (placed.hidden(u) || placed.hidden(v)) return;
      const d = squaredDistance(x, y, placed.x[u], placed.y[u], placed.x[v], placed.y[v]);
      if (d < distance) [best, distance] = [k, d];
    });
    return best < 0 ? null : { kind: "pair", index: best };
  }

  draw() {
    const context = this.begin();
    const { state } = this.app;
    const marked = [state.selected, state.hovered].filter(Boolean);
    if (state.playing || state.now > 0) this.drawActive(context);
    for (const thing of marked) this.markLinks(context, thing);
    if (state.now > 0 || marked.length) this.drawNodes(context);
    for (const thing of marked) if (thing.kind === "node") this.markNode(context, thing.index);
  }

  drawBase() {
    const context = this.beginBase();
    this.drawBoxes(context);
    this.drawLinks(context);
    const { state } = this.app;
    if (state.cut >= 0) this.drawCut(context, state.cut);
    if (state.allTrees) this.drawAllTrees(context);
    else if (state.tree >= 0) this.drawTree(context, state.tree);
    this.drawNodes(context);
  }

  drawBoxes(context) {
    const { app, placed, scale } = this;
    context.strokeStyle = app.palette.boxLine;
    context.lineWidth = 1;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    for (const [name, left, top, right, bottom] of placed.boxes) {
      const [x, y] = this.pixel(left, top);
      const [w, h] = [(right - left) * scale, (bottom - top) * scale];
      context.fillStyle = app.palette.box;
      for (let k = app.state.folded ? 2 : 0; k >= 0; k--) { // cards behind it: there are more such boxes
        context.fillRect(x + 5 * k, y - 5 * k, w, h);
        context.strokeRect(x + 5 * k, y - 5 * k, w, h);
      }
      if (scale >= 18 && context.measureText(name).width < w - 8) {
        context.fillStyle = app.palette.muted;
        context.fillText(name, x + 5, y + h - 5);
      }
    }
  }

  /* All that are not hidden, each as its kind and load are. */
  drawLinks(context) {
    const { placed } = this;
    const under = this.crowded() ? this.uniteEnds().hidden : null;
    const members = [];
    this.pairs.forEach(([u, v], k) => {
      if (!placed.hidden(u) && !placed.hidden(v) && !(under && under[k])) members.push(k);
    });
    const { tree, allTrees } = this.app.state;
    this.strokeColoured(context, members, tree >= 0 || allTrees ? this.app.palette.faint : null);
  }

  /* Lines of one colour and width together. */
  strokeColoured(context, members, colour = null) {
    const { heat, kinds, link } = this.app.palette;
    const loads = this.app.state.heat && this.heated;
    const groups = new Map();
    for (const k of members) {
      const look = this.looks[k];
      const key = (loads ? look.heat + 1 : look.kind) * 4 + look.width;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(k);
    }
    const plain = (level) => (this.kindNames.length > 1 ? kinds[level] : link);
    for (const key of [...groups.keys()].sort((a, b) => a - b)) {
      const level = key >> 2;
      context.strokeStyle = colour || (loads ? heat[level - 1] || link : plain(level));
      context.lineWidth = this.lineWidth(key % 4);
      this.strokePairs(context, groups.get(key));
    }
  }

  lineWidth(wide) {
    return (1 + wide * 0.8) * clamp(this.scale / 34, 0.35, 1);
  }

  strokePairs(context, members) {
    const ends = new Uint32Array(2 * members.length);
    members.forEach((k, i) => { [ends[2 * i], ends[2 * i + 1]] = this.pairs[k]; });
    if (members.length > CROWD) this.setLines(context, [[context.strokeStyle, ends]]);
    else this.stroke(context, ends);
  }

  /* Straight lines, as far as they are in sight: two nodes each. */
  stroke(context, ends) {
    const { width, height } = this;
    let count = 0;
    context.beginPath();
    for (let i = 0; i < ends.length; i += 2) {
      const [x, y] = this.at(ends[i]);
      const [p, q] = this.at(ends[i + 1]);
      if ((x < 0 && p < 0) || (y < 0 && q < 0)) continue;
      if ((x > width && p > width) || (y > height && q > height)) continue;
      context.moveTo(x, y);
      context.lineTo(p, q);
      if (++count % STROKES === 0) {
        context.stroke();
        context.beginPath();
      }
    }
    context.stroke();
  }

  setLines(context, groups) {
    const { placed, ratio, scale } = this;
    const places = (values, from) => Float64Array.from(values, (at) => (at * scale + from) * ratio);
    setLines(context, places(placed.x, this.x), places(placed.y, this.y), groups);
  }

  drawNodes(context) {
    const { data, app, placed, scale } = this;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const origin = app.state.tree >= 0 ? data.trees[app.state.tree][1] : -1;
    const root = origin >= 0 && placed.hidden(origin) ? data.twin[origin] : origin;
    for (let v = 0; v < data.nodes.length; v++) {
      if (placed.hidden(v)) continue;
      const [x, y] = this.at(v);
      if (x < -40 || y < -40 || x > this.width + 40 || y > this.height + 40) continue;
      const gpu = data.gpu[v] === 1;
      context.fillStyle = gpu ? app.palette.gpu : app.palette.switch;
      context.strokeStyle = gpu ? app.palette.gpuLine : app.palette.switchLine;
      context.lineWidth = v === root ? 3 : scale >= 14 ? 1 : 0.5;
      const half = clamp(NODE * scale, 1.5, 20);
      const wide = gpu ? half : Math.min(half * 1.9, 30);
      context.beginPath();
      if (gpu) context.rect(x - wide, y - half * 0.85, 2 * wide, 1.7 * half);
      else context.ellipse(x, y, wide, half * 0.8, 0, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
      if (scale < 26) continue;
      const label = gpu ? (data.rank[v] < 0 ? "-" : String(data.rank[v])) : data.short[v];
      const size = Math.min(13, gpu ? half * (label.length > 3 ? 0.75 : 1.1) : (3.2 * wide) / Math.max(6, label.length));
      if (size < 7) continue;
      context.fillStyle = app.palette.text;
      context.font = `${size}px system-ui, sans-serif`;
      context.fillText(label, x, y + 0.5);
      if (app.state.folded && !this.boxed(v) && this.alike[v] > 1) context.fillText(`x ${this.alike[v]}`, x + wide + 24, y);
    }
  }

  boxed(v) {
    const { x, y, boxes } = this.placed;
    return boxes.some(([, left, top, right, bottom]) => left < x[v] && x[v] < right && top < y[v] && y[v] < bottom);
  }

  /* One tree, hop by hop, each link once and in the direction of the data. */
  drawTree(context, tree) {
    const { app } = this;
    const drawn = new Set();
    const most = app.state.hops;
    const colours = app.palette.hops;
    context.lineWidth = clamp(this.scale / 14, 1.2, 2.6);
    for (const [path, hop] of app.trees.edges(tree)) {
      if (hop > most) continue;
      context.strokeStyle = context.fillStyle = colours[(hop - 1) % colours.length];
      for (let i = 0; i + 1 < path.length; i++) {
        const [u, v] = this.placed.hidden(path[i]) || this.placed.hidden(path[i + 1])
          ? [this.data.twin[path[i]], this.data.twin[path[i + 1]]] : [path[i], path[i + 1]];
        const key = u * this.data.nodes.length + v;
        if (drawn.has(key)) continue;
        drawn.add(key);
        this.drawArrow(context, u, v);
      }
    }
  }

  drawArrow(context, u, v) {
    const [x, y] = this.at(u);
    const [p, q] = this.at(v);
    const length = Math.hypot(p - x, q - y);
    if (length < 2) return;
    const [dx, dy] = [(p - x) / length, (q - y) / length];
    const half = Math.min(NODE * this.scale, 20);
    const cut = Math.min(half, length / 3);
    const bend = Math.min(0.07 * length, 26);
    const [mx, my] = [(x + p) / 2 - dy * bend, (y + q) / 2 + dx * bend];
    const [ex, ey] = [p - dx * cut, q - dy * cut];
    context.beginPath();
    context.moveTo(x + dx * cut, y + dy * cut);
    context.quadraticCurveTo(mx, my, ex, ey);
    context.stroke();
    const tip = Math.min(8, half * 0.8);
    if (tip < 2) return;
    const turn = Math.atan2(ey - my, ex - mx);
    context.beginPath();
    context.moveTo(ex, ey);
    for (const at of [turn - 0.45, turn + 0.45]) context.lineTo(ex - tip * Math.cos(at), ey - tip * Math.sin(at));
    context.fill();
  }

  /* All trees: each in a colour of its own, straight from rank to rank. */
  drawAllTrees(context) {
    const { app, data } = this;
    if (this.crowded()) {
      const { trees } = this.uniteEnds();
      this.setLines(context, trees.map(([ends, times], k) => [treeColour(k, app.theme === "dark"), ends, times]));
      return;
    }
    context.lineWidth = 1;
    context.globalAlpha = 0.8;
    for (let k = 0; k < data.trees.length; k++) {
      context.strokeStyle = treeColour(k, app.theme === "dark");
      this.stroke(context, this.treeEnds(k));
    }
    context.globalAlpha = 1;
  }

  /* Whether all trees are shown, and they are so many lines that pixels are set. */
  crowded() {
    return this.app.state.allTrees && this.data.pathSizes.length > CROWD;
  }

  /* Per tree the ends of its edges, and how many edges lie there: each pair of ranks only with the
     last tree that joins the two, which is the one that is seen. And which links lie under them. */
  uniteEnds() {
    if (this.united) return this.united;
    const { data } = this;
    const found = new Map();
    for (let k = 0; k < data.trees.length; k++) {
      const ends = this.treeEnds(k);
      for (let i = 0; i < ends.length; i += 2) {
        const [low, high] = [Math.min(ends[i], ends[i + 1]), Math.max(ends[i], ends[i + 1])];
        const key = low * data.nodes.length + high;
        const known = found.get(key);
        if (known) [known[2], known[3]] = [k, known[3] + 1];
        else found.set(key, [low, high, k, 1]);
      }
    }
    const crowd = data.trees.map(() => [[], []]);
    for (const [low, high, k, times] of found.values()) {
      crowd[k][0].push(low, high);
      crowd[k][1].push(times);
    }
    this.united = {
      trees: crowd.map(([ends, times]) => [Uint32Array.from(ends), Uint32Array.from(times)]),
      hidden: Uint8Array.from(this.pairs, ([low, high]) => found.has(low * data.nodes.length + high) ? 1 : 0),
    };
    return this.united;
  }

  /* The ranks at the two ends of each edge of a tree. */
  treeEnds(k) {
    return this.app.trees.edges(k).flatMap(([path]) => [path[0], path[path.length - 1]]);
  }

  /* The nodes on one side of the cut, and the links that cross it. */
  drawCut(context, cut) {
    const inside = this.app.cuts[cut];
    const { palette, state } = this.app;
    context.fillStyle = palette.cutFill;
    const drawn = state.folded ? new Set([...inside].map((v) => this.data.twin[v])) : inside;
    for (const v of drawn) {
      const [x, y] = this.at(v);
      const half = 0.47 * this.scale;
      context.fillRect(x - half, y - half, 2 * half, 2 * half);
    }
    context.strokeStyle = palette.cut;
    context.lineWidth = clamp(this.scale / 12, 1.5, 3.5);
    context.setLineDash([7, 4]);
    const crossing = [];
    this.pairs.forEach(([u, v], k) => { if (inside.has(u) !== inside.has(v)) crossing.push(k); });
    this.strokePairs(context, crossing);
    context.setLineDash([]);
  }

  /* The links that carry something at the moment of the play head, in the colours of the time line. */
  drawActive(context) {
    const { app } = this;
    if (!app.run) return;
    const groups = new Map();
    for (const [link, category] of app.run.activeLinks(app.state.now, app.state.colour)) {
      if (!groups.has(category)) groups.set(category, new Set());
      groups.get(category).add(this.pairOf[link]);
    }
    context.lineWidth = clamp(this.scale / 11, 1.4, 3.4);
    for (const [category, pairs] of groups) {
      context.strokeStyle = app.run.colours(app.state.colour, app.palette)[category];
      this.strokePairs(context, [...pairs]);
    }
  }

  /* What is selected keeps its colour, between two lines in that of the text. */
  markLinks(context, thing) {
    const links = thing.kind === "bar" ? this.app.run.linksOf(thing.index)
      : thing.kind === "node" ? [] : [...this.app.linksOf(thing)];
    const members = [...new Set(links.map((e) => this.pairOf[e]))];
    if (!members.length) return;
    context.strokeStyle = this.app.palette.select;
    context.lineWidth = this.lineWidth(3) + 4;
    this.strokePairs(context, members);
    context.strokeStyle = this.app.palette.page;
    context.lineWidth = this.lineWidth(3) + 1.4;
    this.strokePairs(context, members);
    this.strokeColoured(context, members);
  }

  markNode(context, v) {
    const [x, y] = this.at(v);
    const half = Math.max(4, Math.min(NODE * this.scale, 20) + 3);
    const wide = this.data.gpu[v] ? half : half * 1.6;
    context.strokeStyle = this.app.palette.select;
    context.lineWidth = 2.5;
    context.strokeRect(x - wide, y - half, 2 * wide, 2 * half);
  }
}
