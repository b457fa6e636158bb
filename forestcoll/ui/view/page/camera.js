"use strict";
/* From units of the layout to pixels of a canvas, and the canvas itself. */

class Camera {
  constructor() {
    this.scale = 1;
    this.x = 0;
    this.y = 0;
  }

  /* All of width x height, in the middle of a canvas of w x h pixels. */
  fit(width, height, w, h, margin) {
    this.scale = Math.max(1e-3, Math.min((w - 2 * margin) / width, (h - 2 * margin) / height, 64));
    this.x = (w - width * this.scale) / 2;
    this.y = (h - height * this.scale) / 2;
  }

  zoom(factor, px, py) {
    const next = Math.max(0.5, Math.min(400, this.scale * factor));
    this.x = px - ((px - this.x) * next) / this.scale;
    this.y = py - ((py - this.y) * next) / this.scale;
    this.scale = next;
  }

  move(dx, dy) {
    this.x += dx;
    this.y += dy;
  }
}

/* A canvas that is as sharp as the screen; `resized` says whether it has another size than before. */
class Surface {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
    this.width = 0;
    this.height = 0;
  }

  resized() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width === this.width && height === this.height && ratio === this.ratio) return false;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    return true;
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
