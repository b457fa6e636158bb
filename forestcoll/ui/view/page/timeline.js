/* The time line: rows of a run, and in each how much is at work from moment to moment, by colour. */

const GUTTER = 142;
const AXIS = 26;
const USUAL_ROW = 18;
const LINK_ROW = 9; // at first, also where not all are seen then

class Timeline extends Picture {
  constructor(canvas, run, app) {
    super(canvas, app, {
      zoom: (factor, x, y, event) => (event.shiftKey ? this.zoomRows(factor, y) : this.zoomTime(factor, x)),
      move: (dx, dy) => this.move(dx, dy),
      press: (x, y) => {
        const thing = this.hit(x, y);
        if (thing) app.select(thing);
        else if (x > GUTTER) app.goTo(this.timeAt(x));
      },
    });
    this.run = run;
    const rows = (begin, end, k) => new BlockRows(run, begin, end, run.notes[k]);
    this.kinds = { blocks: rows(0, run.blocks, 0), tiles: rows(run.blocks, run.names.length, 1), links: new LinkRows(run, app.fabric, app.fabric.rates) };
  }

  get rows() {
    return this.kinds[this.app.state.rows];
  }

  get leastHeight() {
    return Math.min(USUAL_ROW, (this.height - AXIS - 4) / this.rows.count);
  }

  fit() {
    this.resized();
    this.from = 0;
    this.perPixel = (this.run.time || 1) / Math.max(50, this.width - GUTTER - 14);
    this.rowHeight = Math.max(this.leastHeight, this.app.state.rows === "blocks" ? 0 : LINK_ROW);
    this.top = 0;
    this.moved = false;
    this.refresh();
  }

  /* What is in sight: from and to in microseconds, the first row, and how high rows are. */
  window() {
    return [this.from, this.timeAt(this.width), this.top, this.rowHeight];
  }

  setWindow([from, to, top, height]) {
    if (to <= from) return;
    this.moved = true;
    this.from = clamp(from, -this.run.time, 2 * this.run.time);
    this.perPixel = Math.max(1e-7, (to - from) / Math.max(50, this.width - GUTTER));
    this.rowHeight = clamp(height, this.leastHeight, 40);
    this.top = top;
    this.keepInside();
  }

  zoomTime(factor, x) {
    const here = this.timeAt(x);
    const widest = (1.2 * (this.run.time || 1)) / Math.max(50, this.width - GUTTER);
    this.perPixel = clamp(this.perPixel / factor, 1e-7, widest);
    this.from = here - (x - GUTTER) * this.perPixel;
    this.moved = true;
    this.refresh();
  }

  zoomRows(factor, y) {
    const row = (y - AXIS) / this.rowHeight + this.top;
    this.rowHeight = clamp(this.rowHeight * factor, this.leastHeight, 40);
    this.top = row - (y - AXIS) / this.rowHeight;
    this.moved = true;
    this.keepInside();
  }

  move(dx, dy) {
    this.from -= dx * this.perPixel;
    this.top -= dy / this.rowHeight;
    this.moved = true;
    this.keepInside();
  }

  keepInside() {
    const shown = (this.height - AXIS) / this.rowHeight;
    this.top = clamp(this.top, 0, Math.max(0, this.rows.count - shown));
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
    const [time, slack] = [this.timeAt(x), 2 * this.perPixel];
    const reach = Math.max(0, Math.ceil(1.5 / this.rowHeight) - 1);
    for (let r = Math.max(0, row - reach); r <= Math.min(this.rows.count - 1, row + reach); r++) {
      const found = this.rows.hit(r, time - slack, time + slack);
      if (found) return found;
    }
    return null;
  }

  /* The rows that a bar lies in. */
  rowsOf(bar) {
    return [...this.rows.list.subarray(...this.rows.range(bar))];
  }

  /* Brings a bar into sight. */
  show(bar) {
    const [row = 0] = this.rowsOf(bar);
    const shown = (this.height - AXIS) / this.rowHeight;
    if (row < this.top || row + 1 > this.top + shown) this.top = row - shown / 2;
    const x = this.xAt(this.run.start[bar]);
    if (x < GUTTER || x > this.width - 20) {
      this.from = this.run.start[bar] - 40 * this.perPixel;
    }
    this.keepInside();
  }

  draw() {
    const context = this.begin();
    const { state, palette } = this.app;
    for (const thing of [state.selected, state.hovered]) {
      if (thing && thing.kind === "bar") this.rowsOf(thing.index).forEach((row) => this.outline(context, thing.index, row));
    }
    this.drawScroll(context);
    const x = this.xAt(state.now);
    if (x < GUTTER) return;
    context.fillStyle = palette.select;
    context.fillRect(x - 0.75, AXIS - 8, 1.5, this.height);
  }

  /* Which of the rows are seen. */
  drawScroll(context) {
    const { width, height } = this;
    const shown = (height - AXIS) / this.rowHeight / this.rows.count;
    if (shown >= 1) return;
    context.fillStyle = this.app.palette.muted;
    context.fillRect(width - 6, AXIS + ((height - AXIS) * this.top) / this.rows.count, 4, (height - AXIS) * shown);
  }

  outline(context, bar, row) {
    const [x, y] = [this.xAt(this.run.start[bar]), this.yAt(row)];
    const wide = Math.max(2, (this.run.end[bar] - this.run.start[bar]) / this.perPixel);
    context.strokeStyle = this.app.palette.select;
    context.lineWidth = 2;
    if (x + wide > GUTTER) {
      context.strokeRect(Math.max(GUTTER, x) - 1, y - 1, wide + 2, Math.max(2, this.rowHeight) + 1);
    }
  }

  drawBase() {
    const context = this.beginBase();
    this.drawStripes(context);
    this.drawBars(context);
    context.fillStyle = this.app.palette.page;
    context.fillRect(0, 0, GUTTER - 2, this.height);
    context.fillRect(0, 0, this.width, AXIS);
    context.textBaseline = "middle";
    context.textAlign = "left";
    this.drawNames(context);
    this.drawAxis(context);
  }

  /* [rank, first row, row after the last] of ranks in sight. */
  *ranksInSight() {
    const { rank, count } = this.rows;
    for (let row = 0; row < count;) {
      const begin = row;
      while (row < count && rank[row] === rank[begin]) row++;
      if (this.yAt(row) > AXIS && this.yAt(begin) < this.height) yield [rank[begin], begin, row];
    }
  }

  drawStripes(context) {
    context.fillStyle = this.app.palette.stripe;
    for (const [rank, begin, end] of this.ranksInSight()) {
      if (rank % 2) {
        context.fillRect(0, this.yAt(begin), this.width, (end - begin) * this.rowHeight);
      }
    }
  }

  /* Rows in sight, as many together as it takes for two pixels: each is filled as far as it is at work,
     from its foot, in the colours of what is. */
  drawBars(context) {
    const { rowHeight, rows, ratio, app } = this;
    const left = Math.round(GUTTER * ratio);
    const [width, height] = [context.canvas.width - left, context.canvas.height];
    const together = Math.max(1, Math.ceil(2 / (rowHeight * ratio)));
    const begin = Math.floor(this.top / together) * together;
    const end = Math.min(rows.count, Math.ceil(this.top + (this.height - AXIS) / rowHeight));
    const groups = Math.ceil((end - begin) / together);
    if (width <= 0 || groups <= 0) return;
    const colours = [...this.run.colours(app.state.colour, app.palette), app.palette.other].map(channels);
    const cover = this.measure(begin, groups, together, width, colours.length);
    const image = context.getImageData(left, 0, width, height);
    const gap = rowHeight > 5 ? 1.5 : 0;
    for (let group = 0; group < groups; group++) {
      const top = this.yAt(begin + group * together) * ratio;
      const foot = Math.min(height, Math.round(top + (Math.min(together, end - begin) * rowHeight - gap) * ratio));
      this.fill(image, cover, group, Math.round(Math.max(AXIS * ratio, top)), foot, Math.round(top), colours);
    }
    context.putImageData(image, left, 0);
  }

  /* For each group of rows, colour and pixel by how much more it is filled than in the pixel before. */
  measure(begin, groups, together, width, colours) {
    const { run, rows, app, perPixel } = this;
    const scale = this.ratio / perPixel;
    const cover = new Float32Array(groups * colours * (width + 2));
    const { of } = run.categories(app.state.colour);
    const add = (at, x, share) => {
      const pixel = Math.floor(x);
      cover[at + pixel] += share * (1 - x + pixel);
      cover[at + pixel + 1] += share * (x - pixel);
    };
    for (let k = 0; k < run.start.length; k++) {
      const x = Math.max(0, (run.start[k] - this.from) * scale);
      const wide = (run.end[k] - run.start[k]) * scale;
      const right = Math.min(width, Math.max((run.end[k] - this.from) * scale - (rows.split && wide > 4 ? 0.7 : 0), x + 0.4));
      if (right <= 0 || x >= width) continue;
      const colour = app.stands(k) ? of[k] : colours - 1;
      const [first, last] = rows.range(k);
      for (let i = first; i < last; i++) {
        const group = Math.floor((rows.list[i] - begin) / together);
        if (group < 0 || group >= groups) continue;
        const share = rows.share(k, i) / together;
        const at = (group * colours + colour) * (width + 2);
        add(at, x, share);
        add(at, right, -share);
      }
    }
    return cover;
  }

  /* One group of rows between `top` and `foot`. In less than four pixels a shade says how full it is, in
     the colour that there is most of. */
  fill({ width, data }, cover, group, top, foot, whole, colours) {
    const full = foot - whole;
    const levels = new Float64Array(colours.length);
    const paint = (x, from, to, colour, share) => {
      for (let row = Math.max(top, from); row < to; row++) {
        const at = 4 * (row * width + x);
        for (let i = 0; i < 3; i++) data[at + i] += (colour[i] - data[at + i]) * share;
      }
    };
    for (let x = 0; x < width; x++) {
      let [sum, most] = [0, 0];
      for (let c = 0; c < colours.length; c++) {
        levels[c] += cover[(group * colours.length + c) * (width + 2) + x];
        sum += Math.max(0, levels[c]);
        if (levels[c] > levels[most]) most = c;
      }
      if (sum < 1e-3) continue;
      if (full < 4) {
        paint(x, whole, foot, colours[most], Math.min(1, 0.2 + 0.8 * sum));
        continue;
      }
      let [filled, y] = [0, foot];
      for (let c = 0; c < colours.length; c++) {
        if (levels[c] < 1e-4) continue;
        filled += levels[c] / Math.max(1, sum);
        const end = Math.min(foot - 1, Math.round(foot - full * filled));
        paint(x, end, y, colours[c], 1);
        y = Math.min(y, end);
      }
    }
  }

  drawNames(context) {
    const { rows } = this;
    const { palette } = this.app;
    let last = AXIS;
    for (const [rank, begin, end] of this.ranksInSight()) {
      const y = Math.max(this.yAt(begin), AXIS) + Math.min(8, ((end - begin) * this.rowHeight) / 2);
      if (y - 6 < last || y + 6 > this.height) continue;
      context.font = "600 12px system-ui, sans-serif";
      context.fillStyle = palette.text;
      context.fillText(rank < 0 ? "switches" : `rank ${rank}`, 8, y);
      last = y + 7;
    }
    if (this.rowHeight < LINK_ROW) return;
    context.font = `${Math.min(11, this.rowHeight)}px system-ui, sans-serif`;
    context.fillStyle = palette.muted;
    const to = Math.min(rows.count, Math.ceil(this.top + this.height / this.rowHeight));
    for (let row = Math.floor(this.top); row < to; row++) {
      const y = this.yAt(row) + this.rowHeight / 2;
      if (y - 4 > AXIS) context.fillText(rows.names[row], 68, y, GUTTER - 74);
    }
  }

  drawAxis(context) {
    const { palette } = this.app;
    const { width } = this;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = palette.muted;
    context.fillText(this.rows.note || "time", 8, 13, GUTTER - 12);
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
