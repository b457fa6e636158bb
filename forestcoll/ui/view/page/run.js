/* The simulated run: its bars, what they are coloured by, and the rows that they lie in. */

class Run {
  constructor(data, kindOf) {
    Object.assign(this, data.run);
    this.data = data;
    this.first = starts(data.rowBars);
    this.wayFirst = starts(data.waySizes);
    const count = data.gap.length;
    this.start = new Float64Array(count);
    this.end = new Float64Array(count);
    this.row = new Uint32Array(count);
    const tick = this.time / this.ticks;
    for (let row = 0; row < data.rowBars.length; row++) {
      let at = 0;
      for (let k = this.first[row]; k < this.first[row + 1]; k++) {
        this.row[k] = row;
        this.start[k] = (at += data.gap[k]) * tick;
        this.end[k] = (at += data.length[k]) * tick;
      }
    }
    // Per way the kind of its slowest link; kinds are numbered from the fastest on.
    this.wayKind = Uint8Array.from(data.waySizes, (_, way) => this.along(way).reduce((most, link) => Math.max(most, kindOf[link]), 0));
    this.modes = this.trees ? ["phase", "kind", "tree"] : ["phase", "kind"];
    this.known = {};
  }

  /* The links of a way. */
  along(way) {
    return this.data.wayLinks.subarray(this.wayFirst[way], this.wayFirst[way + 1]);
  }

  linksOf(bar) {
    return [...this.along(this.data.way[bar])];
  }

  /* Per bar the number of its category: of phases, of kinds of links (the last one: local work), or of
     trees, six at a time. */
  categories(mode) {
    const { data, phases } = this;
    if (this.known[mode]) return this.known[mode];
    const count = { phase: phases.length, kind: MOST_KINDS + 1, tree: MOST_KINDS }[mode];
    const of = {
      phase: (k) => data.phase[k],
      kind: (k) => (data.waySizes[data.way[k]] ? this.wayKind[data.way[k]] : MOST_KINDS),
      tree: (k) => data.step[k] % MOST_KINDS,
    }[mode];
    const found = Uint8Array.from(data.gap, (_, k) => of(k));
    const used = [...new Set(found)].sort((a, b) => a - b);
    return (this.known[mode] = { count, of: found, used });
  }

  /* Names and colours of the categories that occur. */
  legend(mode, palette, kindNames) {
    if (mode === "tree") return [["trees, in turn", `linear-gradient(90deg,${palette.kinds.join()})`, true]];
    const names = mode === "phase" ? this.phases : Object.assign([...kindNames], { [MOST_KINDS]: "local work" });
    return this.categories(mode).used.map((c) => [names[c], this.colours(mode, palette)[c]]);
  }

  colours(mode, palette) {
    return mode === "phase" ? this.phases.map((name) => palette.phases[name])
      : [...palette.kinds, palette.phases["local work"]];
  }

  /* Links at work and the category of what they carry. */
  activeLinks(now, mode) {
    const { start, end, data } = this;
    const { of } = this.categories(mode);
    const ways = new Int8Array(data.waySizes.length).fill(-1);
    for (let k = 0; k < start.length; k++) if (start[k] <= now && now < end[k]) ways[data.way[k]] = of[k];
    const links = new Map();
    ways.forEach((category, way) => {
      if (category >= 0) for (const link of this.along(way)) links.set(link, category);
    });
    return links;
  }

  /* Per way whether it uses one of the links. */
  waysOver(links) {
    return Uint8Array.from(this.data.waySizes, (_, way) => this.along(way).some((link) => links.has(link)));
  }
}

/* A row for each thread block, proxy or tree of a rank, or for each tile of its data: at work or not. */
class BlockRows {
  constructor(run, begin, end, note) {
    Object.assign(this, { run, begin, note, rank: run.data.rowRank.subarray(begin, end), names: run.names.slice(begin, end), count: end - begin });
    this.list = run.row.map((row) => (row < end ? row - begin : -1)); // others: far below
    this.split = true; // bars that follow each other can be told apart
  }

  /* Where the rows of a bar lie in `list`. */
  range(bar) {
    return [bar, bar + 1];
  }

  /* How much of the row a bar fills, of 1. */
  share() {
    return 1;
  }

  hit(row, from, to) {
    const { run } = this;
    row += this.begin;
    for (let k = run.first[row]; k < run.first[row + 1]; k++) {
      if (run.start[k] <= to && from <= run.end[k]) return { kind: "bar", index: k };
    }
    return null;
  }
}

/* A row for each direction of a link: as much of its bandwidth as is used. Those of a rank together, out
   before in; links between switches last. */
class LinkRows {
  constructor(run, fabric, bandwidth) {
    const { data } = run;
    Object.assign(this, { run, fabric, bandwidth, count: data.tail.length, names: data.linkNames, link: data.linkOrder, rank: data.linkOwner });
    const row = new Uint32Array(this.count);
    this.link.forEach((link, at) => { row[link] = at; });
    this.list = data.wayLinks.map((link) => row[link]);
  }

  range(bar) {
    const way = this.run.data.way[bar];
    return [this.run.wayFirst[way], this.run.wayFirst[way + 1]];
  }

  share(bar, at) {
    const { run } = this;
    const rate = run.amounts[run.data.amount[bar]] / (run.end[bar] - run.start[bar] || 1) / 1000;
    return rate / this.bandwidth[run.data.wayLinks[at]];
  }

  hit(row, from, to) {
    const { run } = this;
    const over = run.waysOver(new Set([this.link[row]]));
    for (let k = 0; k < run.start.length; k++) {
      if (over[run.data.way[k]] && run.start[k] <= to && from <= run.end[k]) return { kind: "bar", index: k };
    }
    return { kind: "pair", index: this.fabric.pairOf[this.link[row]] };
  }
}
