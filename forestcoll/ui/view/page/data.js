"use strict";
/* The data of the page: inflated, and the arrays as typed arrays. view/data.py says how it is laid out. */

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array };

async function loadData(text) {
  const letters = atob(text.trim());
  const packed = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  for (const [name, [type, count, offset]] of Object.entries(data.arrays)) {
    data[name] = fromPlanes(bytes, 4 + length + offset, count, ARRAYS[type]);
  }
  return data;
}

/* All first bytes, then all second bytes, ... to the numbers that they make up. */
function fromPlanes(bytes, start, count, Type) {
  const size = Type.BYTES_PER_ELEMENT;
  const out = new Uint8Array(count * size);
  for (let plane = 0; plane < size; plane++) {
    const from = start + plane * count;
    for (let i = 0; i < count; i++) out[i * size + plane] = bytes[from + i];
  }
  return new Type(out.buffer);
}

/* Where each of several parts starts, and the end of the last. */
function starts(sizes) {
  const out = new Uint32Array(sizes.length + 1);
  for (let i = 0; i < sizes.length; i++) out[i + 1] = out[i] + sizes[i];
  return out;
}

/* "3/40" -> 0.075 */
function toNumber(text) {
  const [above, below] = text.split("/");
  return below === undefined ? Number(above) : Number(above) / Number(below);
}

/* "3/40 (0.075)", "25": exact, and what it is about. */
function exact(text) {
  return text.includes("/") ? `${text} (${round(toNumber(text), 6)})` : text;
}

function round(value, digits = 5) {
  return Number(value.toPrecision(digits));
}

/* In the largest of the units that it reaches, or the last one. */
function inUnits(value, units) {
  const [unit, size] = units.find((each) => value >= each[1]) || units.at(-1);
  return `${round(value / size)} ${unit}`;
}

function showTime(microseconds) {
  return inUnits(microseconds, [["s", 1e6], ["ms", 1e3], ["us", 1]]);
}

function showBytes(count) {
  return inUnits(count, [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["bytes", 1]]);
}

function plural(count, noun) {
  return count === 1 ? `1 ${noun}` : `${count} ${noun}s`;
}
