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
  return text.includes("/") ? `${text} (${Number(toNumber(text).toPrecision(6))})` : text;
}

function showTime(microseconds) {
  if (microseconds >= 1e6) return `${Number((microseconds / 1e6).toPrecision(5))} s`;
  if (microseconds >= 1e3) return `${Number((microseconds / 1e3).toPrecision(5))} ms`;
  return `${Number(microseconds.toPrecision(5))} us`;
}

function showBytes(count) {
  for (const [unit, bits] of [["GiB", 30], ["MiB", 20], ["KiB", 10]]) {
    if (count >= 2 ** bits) return `${Number((count / 2 ** bits).toPrecision(5))} ${unit}`;
  }
  return `${Number(count.toPrecision(5))} bytes`;
}
