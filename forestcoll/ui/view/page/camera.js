/* A canvas, and what a pointer does on it. */

function clamp(value, least, most) {
  return Math.max(least, Math.min(most, value));
}

/* A picture on a canvas that is as sharp as the screen. What stays the same while trees and the run go on
   is drawn once, by `drawBase`, into a picture of its own. */
const SOLID = { alpha: false, willReadFrequently: true }; // of a canvas

class Picture {
  constructor(canvas, app, on) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", SOLID);
    this.base = document.createElement("canvas");
    Object.assign(this, { app, width: 0, height: 0, stale: true, moved: false });
    listenToPointer(canvas, {
      hover: (x, y, event) => app.hover(this.hit(x, y), event),
      leave: () => app.hover(null),
      ...on,
    });
  }

  /* Whether the canvas has another size than before. */
  resized() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width === this.width && height === this.height && ratio === this.ratio) return false;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    return true;
  }

  refresh() {
    this.stale = true;
    this.app.redraw();
  }

  /* The context, once the base is drawn on it. */
  begin() {
    if (this.resized() || this.stale) this.drawBase();
    const { context, ratio } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.base, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }

  /* The context of the base, which is empty then. */
  beginBase() {
    const { base, canvas, ratio } = this;
    Object.assign(base, { width: canvas.width, height: canvas.height });
    const context = base.getContext("2d", SOLID);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.app.palette.page;
    context.fillRect(0, 0, this.width, this.height);
    this.stale = false;
    return context;
  }
}

/* Wheel and dragging: `zoom(factor, x, y, event)`, `move(dx, dy, event)`, `hover(x, y)`, `press(x, y)`. */
function listenToPointer(canvas, on) {
  let last = null;
  let travelled = 0;
  const at = (event) => {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    on.zoom(Math.exp(-event.deltaY * 0.0015), ...at(event), event);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    last = [event.clientX, event.clientY];
    travelled = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (last === null) {
      on.hover(...at(event), event);
      return;
    }
    const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
    travelled += Math.abs(dx) + Math.abs(dy);
    last = [event.clientX, event.clientY];
    on.move(dx, dy, event);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (last !== null && travelled < 4) on.press(...at(event), event);
    last = null;
  });
  canvas.addEventListener("pointerleave", () => on.leave());
}
