/* Thousands of lines at once: pixels set one by one take a tenth of the time of as many strokes. */

const FINE = 16;

/* Many lines, pixel by pixel: the more lines cross a pixel, the less is seen of what lies below.

   `px`, `py`: places of the nodes in pixels; `groups`: [colour, [node, node, node, node, ...], times],
   two nodes a line, each as if it were drawn so many times (once, if that is left out). Where lines
   of several groups meet, the last group is seen. */
function setLines(context, px, py, groups) {
  const { width, height } = context.canvas;
  const counts = new Uint8Array(width * height);
  const owner = groups.length > 1 ? new Uint16Array(width * height) : null;
  for (let group = 0; group < groups.length; group++) {
    const [, ends, times] = groups[group];
    for (let k = 0; k < ends.length; k += 2) {
      const weight = times ? times[k >> 1] : 1;
      setLine(px[ends[k]], py[ends[k]], px[ends[k + 1]], py[ends[k + 1]], width, height, counts, owner, group, weight);
    }
  }
  const colours = groups.map(([colour]) => channels(colour));
  const shares = Float32Array.from({ length: 256 }, (_, count) => 1 - 0.6 ** count);
  const image = context.getImageData(0, 0, width, height);
  const pixels = image.data;
  for (let at = 0; at < counts.length; at++) {
    if (counts[at] === 0) continue;
    const share = shares[counts[at]];
    const colour = colours[owner ? owner[at] : 0];
    const first = 4 * at;
    pixels[first] += (colour[0] - pixels[first]) * share;
    pixels[first + 1] += (colour[1] - pixels[first + 1]) * share;
    pixels[first + 2] += (colour[2] - pixels[first + 2]) * share;
  }
  context.putImageData(image, 0, 0);
}

/* Counts the pixels of one line, as far as it lies in the picture (clipped in Liang and Barsky's way). */
function setLine(x, y, p, q, width, height, counts, owner, group, weight) {
  const [right, bottom] = [width - 1, height - 1];
  if (x < 0 || y < 0 || p < 0 || q < 0 || x > right || y > bottom || p > right || q > bottom) {
    let [from, to] = [0, 1];
    const [dx, dy] = [p - x, q - y];
    for (const [step, room] of [[-dx, x], [dx, right - x], [-dy, y], [dy, bottom - y]]) {
      if (step === 0 && room < 0) return;
      if (step < 0) from = Math.max(from, room / step);
      if (step > 0) to = Math.min(to, room / step);
    }
    if (from >= to) return;
    [x, y, p, q] = [x + from * dx, y + from * dy, x + to * dx, y + to * dy];
  }
  const steps = Math.max(1, Math.ceil(Math.max(Math.abs(p - x), Math.abs(q - y))));
  // In whole numbers, of which the last FINE bits are parts of a pixel.
  const [dx, dy] = [(((p - x) / steps) * 2 ** FINE) | 0, (((q - y) / steps) * 2 ** FINE) | 0];
  let [column, row] = [(x * 2 ** FINE) | 0, (y * 2 ** FINE) | 0];
  for (let i = 0; i < steps; i++, column += dx, row += dy) {
    const at = (row >> FINE) * width + (column >> FINE);
    counts[at] = Math.min(255, counts[at] + weight);
    if (owner !== null) owner[at] = group;
  }
}

const KNOWN_CHANNELS = new Map();

/* Red, green and blue of any colour of CSS. */
function channels(colour) {
  if (!KNOWN_CHANNELS.has(colour)) {
    channels.canvas ||= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    channels.canvas.fillStyle = colour;
    channels.canvas.fillRect(0, 0, 1, 1);
    KNOWN_CHANNELS.set(colour, channels.canvas.getImageData(0, 0, 1, 1).data.slice(0, 3));
  }
  return KNOWN_CHANNELS.get(colour);
}

/* Of a point from a line between two others. */
function squaredDistance(x, y, ax, ay, bx, by) {
  const [dx, dy] = [bx - ax, by - ay];
  const along = clamp(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1), 0, 1);
  return (x - ax - along * dx) ** 2 + (y - ay - along * dy) ** 2;
}
