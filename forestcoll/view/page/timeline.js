"use strict";
/* The simulated run: a row for each thread block, a bar for each transfer or local work. */

/* The arrays of the run, with the times of all bars as microseconds. */
class Run {
  constructor(data) {
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
  }

  linksOf(bar) {
    const way = this.data.way[bar];
    return [...this.data.wayLinks.subarray(this.wayFirst[way], this.wayFirst[way + 1])];
  }

  moves(bar) {
    const way = this.data.way[bar];
    return this.wayFirst[way + 1] > this.wayFirst[way];
  }

  activeLinks(now) {
    const { start, end, data, wayFirst } = this;
    const ways = new Uint8Array(wayFirst.length);
    for (let k = 0; k < start.length; k++) if (start[k] <= now && now < end[k]) ways[data.way[k]] = 1;
    const links = new Set();
    for (let w = 0; w + 1 < wayFirst.length; w++) {
      if (ways[w]) for (let i = wayFirst[w]; i < wayFirst[w + 1]; i++) links.add(data.wayLinks[i]);
    }
    return links;
  }

  /* Per way whether it uses one of the links. */
  waysOver(links) {
    const found = new Uint8Array(this.wayFirst.length);
    for (let w = 0; w + 1 < this.wayFirst.length; w++) {
      for (let i = this.wayFirst[w]; i < this.wayFirst[w + 1]; i++) {
        if (links.has(this.data.wayLinks[i])) found[w] = 1;
      }
    }
    return found;
  }
}

const GUTTER = 132;
const AXIS = 26;

class Timeline {
  constructor(canvas, run, app) {
    this.surface = new Surface(canvas);
    this.run = run;
    this.app = app;
    this.base = document.createElement("canvas");
    this.stale = true;
    listenToPointer(canvas, {
      zoom: (factor, x, y, event) => (event.shiftKey ? this.zoomRows(factor, y) : this.zoomTime(factor, x)),
      move: (dx, dy) => this.move(dx, dy),
      hover: (x, y, event) => app.hover(this.hit(x, y), event),
      press: (x, y) => {
        const bar = this.hit(x, y);
        if (bar) app.select(bar);
        else if (x > GUTTER) app.goTo(this.timeAt(x));
      },
      leave: () => app.hover(null),
    });
  }

  get rows() {
    return this.run.names.length;
  }

  fit() {
    this.surface.resized();
    this.from = 0;
    this.perPixel = (this.run.time || 1) / Math.max(50, this.surface.width - GUTTER - 14);
    this.rowHeight = Math.min(18, (this.surface.height - AXIS - 4) / this.rows);
    this.top = 0;
    this.refresh();
  }

  refresh() {
    this.stale = true;
    this.app.redraw();
  }

  zoomTime(factor, x) {
    const here = this.timeAt(x);
    const widest = (1.2 * (this.run.time || 1)) / Math.max(50, this.surface.width - GUTTER);
    this.perPixel = Math.max(1e-7, Math.min(widest, this.perPixel / factor));
    this.from = here - (x - GUTTER) * this.perPixel;
    this.refresh();
  }

  zoomRows(factor, y) {
    const row = (y - AXIS) / this.rowHeight + this.top;
    const least = Math.min(18, (this.surface.height - AXIS - 4) / this.rows);
    this.rowHeight = Math.max(least, Math.min(40, this.rowHeight * factor));
    this.top = row - (y - AXIS) / this.rowHeight;
    this.keepInside();
  }

  move(dx, dy) {
    this.from -= dx * this.perPixel;
    this.top -= dy / this.rowHeight;
    this.keepInside();
  }

  keepInside() {
    const shown = (this.surface.height - AXIS) / this.rowHeight;
    this.top = Math.max(0, Math.min(Math.max(0, this.rows - shown), this.top));
    this.refresh();
  }

  timeAt(x) {
    return this.from + (x - GUTTER) * this.perPixel;
  }

  xAt(time) {
    return GUTTER + (time - this.from) / this.perPixel;
  }

  yAt(row) {
    return AXIS + (row - this.top) * this.rowHeight;
  }

  hit(x, y) {
    if (x < GUTTER || y < AXIS) return null;
    const row = Math.floor((y - AXIS) / this.rowHeight + this.top);
    if (row < 0 || row >= this.rows) return null;
    const [time, slack] = [this.timeAt(x), 2 * this.perPixel];
    const reach = Math.max(0, Math.ceil(1.5 / this.rowHeight) - 1);
    for (let r = Math.max(0, row - reach); r <= Math.min(this.rows - 1, row + reach); r++) {
      for (let k = this.run.first[r]; k < this.run.first[r + 1]; k++) {
        if (this.run.start[k] - slack <= time && time <= this.run.end[k] + slack) {
          return { kind: "bar", index: k };
        }
      }
    }
    return null;
  }

  /* Brings a bar into sight. */
  show(bar) {
    const row = this.run.row[bar];
    const shown = (this.surface.height - AXIS) / this.rowHeight;
    if (row < this.top || row + 1 > this.top + shown) this.top = row - shown / 2;
    const x = this.xAt(this.run.start[bar]);
    if (x < GUTTER || x > this.surface.width - 20) {
      this.from = this.run.start[bar] - 40 * this.perPixel;
    }
    this.keepInside();
  }

  draw() {
    if (this.surface.resized() || this.stale) this.drawBase();
    const { context, ratio } = this.surface;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.base, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { state, palette } = this.app;
    for (const thing of [state.selected, state.hovered]) {
      if (thing && thing.kind === "bar") this.outline(context, thing.index);
    }
    const x = this.xAt(state.now);
    if (x < GUTTER) return;
    context.fillStyle = palette.select;
    context.fillRect(x - 0.75, AXIS - 8, 1.5, this.surface.height);
  }

  outline(context, bar) {
    const [x, y] = [this.xAt(this.run.start[bar]), this.yAt(this.run.row[bar])];
    const wide = Math.max(2, (this.run.end[bar] - this.run.start[bar]) / this.perPixel);
    context.strokeStyle = this.app.palette.select;
    context.lineWidth = 2;
    if (x + wide > GUTTER) {
      context.strokeRect(Math.max(GUTTER, x) - 1, y - 1, wide + 2, Math.max(2, this.rowHeight) + 1);
    }
  }

  drawBase() {
    const { surface, base, app } = this;
    base.width = surface.canvas.width;
    base.height = surface.canvas.height;
    const context = base.getContext("2d", { alpha: false, willReadFrequently: true });
    context.setTransform(surface.ratio, 0, 0, surface.ratio, 0, 0);
    context.fillStyle = app.palette.page;
    context.fillRect(0, 0, surface.width, surface.height);
    this.drawStripes(context);
    this.drawBars(context);
    context.fillStyle = app.palette.page;
    context.fillRect(0, 0, GUTTER - 2, surface.height);
    context.fillRect(0, 0, surface.width, AXIS);
    this.drawNames(context);
    this.drawAxis(context);
    this.stale = false;
  }

  /* [rank, first row, row after the last] of ranks in sight. */
  *ranksInSight() {
    const { rowRank } = this.run.data;
    for (let row = 0; row < this.rows;) {
      const begin = row;
      while (row < this.rows && rowRank[row] === rowRank[begin]) row++;
      if (this.yAt(row) > AXIS && this.yAt(begin) < this.surface.height) {
        yield [rowRank[begin], begin, row];
      }
    }
  }

  drawStripes(context) {
    context.fillStyle = this.app.palette.stripe;
    for (const [rank, begin, end] of this.ranksInSight()) {
      if (rank % 2) {
        context.fillRect(0, this.yAt(begin), this.surface.width, (end - begin) * this.rowHeight);
      }
    }
  }

  /* Where a pixel holds several rows: how many of them are at work, as a shade. */
  drawDense(context) {
    const { run, app, surface } = this;
    const ratio = surface.ratio;
    const [width, height] = [context.canvas.width, context.canvas.height];
    const over = app.selectedWays;
    const image = context.getImageData(0, 0, width, height);
    const left = Math.round(GUTTER * ratio);
    const rows = Math.max(1, 1 / (this.rowHeight * ratio));
    const layers = over ? [["other", 0], ["select", 1]] : [["local", 0], ["move", 1]];
    for (const [colour, wanted] of layers) {
      const cover = new Int32Array((width + 1) * height);
      for (let k = 0; k < run.start.length; k++) {
        if ((over ? over[run.data.way[k]] : run.moves(k) ? 1 : 0) !== wanted) continue;
        const y = Math.floor(this.yAt(run.row[k]) * ratio);
        if (y < AXIS * ratio || y >= height) continue;
        const x = Math.floor(Math.max(left, this.xAt(run.start[k]) * ratio));
        const end = Math.min(width, Math.ceil(this.xAt(run.end[k]) * ratio));
        if (end <= left || x >= width || end < x) continue;
        cover[y * (width + 1) + x]++;
        cover[y * (width + 1) + Math.max(x + 1, end)]--;
      }
      this.shade(image, cover, channels(app.palette[colour]), rows);
    }
    context.putImageData(image, 0, 0);
  }

  /* `cover` holds the changes of the number of bars from pixel to pixel of each line. */
  shade(image, cover, colour, rows) {
    const { width, height, data } = image;
    for (let y = 0; y < height; y++) {
      let count = 0;
      for (let x = 0; x < width; x++) {
        count += cover[y * (width + 1) + x];
        if (count <= 0) continue;
        const share = Math.min(1, 0.3 + (0.7 * count) / rows);
        const at = 4 * (y * width + x);
        for (let c = 0; c < 3; c++) data[at + c] += (colour[c] - data[at + c]) * share;
      }
    }
  }

  /* Bars of one colour together; what is narrower than a pixel is a pixel wide. */
  drawBars(context) {
    const { run, app, surface } = this;
    if (this.rowHeight * surface.ratio < 1.5) {
      this.drawDense(context);
      return;
    }
    const over = app.selectedWays;
    const height = Math.max(0.8, this.rowHeight - (this.rowHeight > 5 ? 1.5 : 0));
    const from = Math.max(0, Math.floor(this.top));
    const to = Math.min(this.rows, Math.ceil(this.top + surface.height / this.rowHeight));
    const layers = over ? [["other", 0], ["select", 1]] : [["move", 1], ["local", 0]];
    for (const [colour, wanted] of layers) {
      context.fillStyle = app.palette[colour];
      for (let row = from; row < to; row++) {
        const y = this.yAt(row);
        let painted = -1; // what lies on pixels that are filled already is left away
        for (let k = run.first[row]; k < run.first[row + 1]; k++) {
          const hit = over ? over[run.data.way[k]] : run.moves(k) ? 1 : 0;
          if (hit !== wanted) continue;
          const x = this.xAt(run.start[k]);
          const end = this.xAt(run.end[k]);
          if (end < GUTTER || x > surface.width || end < painted) continue;
          const gap = end - x > 3 ? 0.6 : 0;
          const wide = Math.max(0.9, end - x - gap);
          context.fillRect(x, y, wide, height);
          if (wide < 1) painted = x + 0.9;
        }
      }
    }
  }

  drawNames(context) {
    const { palette } = this.app;
    context.textBaseline = "middle";
    context.textAlign = "left";
    let last = AXIS;
    for (const [rank, begin, end] of this.ranksInSight()) {
      const y = Math.max(this.yAt(begin), AXIS) + Math.min(8, ((end - begin) * this.rowHeight) / 2);
      if (y - 6 < last || y + 6 > this.surface.height) continue;
      context.font = "600 12px system-ui, sans-serif";
      context.fillStyle = palette.text;
      context.fillText(`rank ${rank}`, 8, y);
      last = y + 7;
    }
    if (this.rowHeight < 11) return;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = palette.muted;
    const to = Math.min(this.rows, Math.ceil(this.top + this.surface.height / this.rowHeight));
    for (let row = Math.floor(this.top); row < to; row++) {
      const y = this.yAt(row) + this.rowHeight / 2;
      if (y - 5 > AXIS) context.fillText(this.run.names[row], 64, y, GUTTER - 68);
    }
  }

  drawAxis(context) {
    const { palette } = this.app;
    const { width } = this.surface;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = palette.muted;
    context.fillText(`${this.run.note || "time"}`, 8, 13, GUTTER - 12);
    const rough = 90 * this.perPixel;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    for (let k = Math.ceil(this.from / step); ; k++) {
      const x = this.xAt(k * step);
      if (x > width - 50 || step <= 0) break;
      if (x < GUTTER) continue;
      context.fillStyle = palette.boxLine;
      context.fillRect(x, AXIS - 7, 1, 7);
      context.fillStyle = palette.muted;
      context.fillText(showTime(k * step), x + 3, 11);
    }
    context.fillStyle = palette.boxLine;
    context.fillRect(0, AXIS - 1, width, 1);
  }
}
