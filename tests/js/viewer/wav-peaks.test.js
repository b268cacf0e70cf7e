import assert from "node:assert/strict";
import { test } from "node:test";

import { byteRange, peaksOf, wavShape } from "../../../static/viewer/recording.js";

const RATE_HZ = 16_000;

/** @param {number[]} interleaved @param {number} channels @param {number} [extraBytes] of a chunk nobody knows */
function wav(interleaved, channels, extraBytes = 0) {
  const extra = extraBytes > 0 ? 8 + extraBytes + (extraBytes % 2) : 0;
  const bytes = new ArrayBuffer(44 + extra + interleaved.length * 2);
  const view = new DataView(bytes);
  const write = (/** @type {number} */ at, /** @type {string} */ text) =>
    [...text].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  write(0, "RIFF");
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, channels, true);
  view.setUint32(24, RATE_HZ, true);
  view.setUint16(34, 16, true);
  let at = 36;
  if (extra > 0) {
    write(at, "LIST");
    view.setUint32(at + 4, extraBytes, true);
    at += extra;
  }
  write(at, "data");
  view.setUint32(at + 4, interleaved.length * 2, true);
  interleaved.forEach((value, index) => view.setInt16(at + 8 + 2 * index, value, true));
  return bytes;
}

test("the shape is read, also behind a chunk of another kind", () => {
  assert.deepEqual(wavShape(wav([1, 2, 3, 4], 2)), { rateHz: RATE_HZ, channels: 2, dataOffset: 44, frames: 2 });
  assert.deepEqual(wavShape(wav([1, 2, 3, 4], 1, 5)), { rateHz: RATE_HZ, channels: 1, dataOffset: 58, frames: 4 });
});

test("what is no WAV file of 16 bits has no shape", () => {
  assert.equal(wavShape(new ArrayBuffer(0)), null);
  assert.equal(wavShape(new TextEncoder().encode("<!doctype html> and more and more and more").buffer), null);
  const floats = wav([1], 1);
  new DataView(floats).setUint16(34, 32, true);
  assert.equal(wavShape(floats), null);
});

test("only the bytes of the wanted part are asked for, never beyond the end", () => {
  const shape = { rateHz: RATE_HZ, channels: 2, dataOffset: 44, frames: 100 };
  assert.deepEqual(byteRange(shape, 10, 20), { first: 84, last: 123 });
  assert.deepEqual(byteRange(shape, 90, 200), { first: 404, last: 443 });
});

test("each channel gets the loudest sample of each part", () => {
  const bytes = new Int16Array([0, 16_384, -32_768, 0, 8_192, 0]).buffer;
  const [left, right] = peaksOf(bytes, 2, 2);
  assert.deepEqual([...left], [1, 0.25]);
  assert.deepEqual([...right], [0.5, 0]);
});
