import assert from "node:assert/strict";
import { test } from "node:test";

import { openPeaks, peaksOf, wavShape } from "../../../static/viewer/recording.js";

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

test("each channel gets the loudest sample of each part", () => {
  const bytes = new Int16Array([0, 16_384, -32_768, 0, 8_192, 0]).buffer;
  const [left, right] = peaksOf(bytes, 2, 2);
  assert.deepEqual([...left], [1, 0.25]);
  assert.deepEqual([...right], [0.5, 0]);
});

test("the visible part is loaded first, in pieces, and once", async () => {
  const seconds = 100;
  const samples = new Array(seconds * 100).fill(0);
  samples[5_000] = 16_384; // at 50 s
  const file = wav(samples, 1);
  new DataView(file).setUint32(24, 100, true); // samples per second
  /** @type {number[][]} */
  const asked = [];
  const source = openPeaks(
    async (first, last) => (asked.push([first, last]), file.slice(first, last + 1)),
    () => {},
  );
  source.look({ fromS: 45, toS: 55 });
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  await settle();
  assert.deepEqual(asked.slice(1), [[44 + 8_000, 44 + 11_999]]);
  source.look({ fromS: 30, toS: 55 });
  await settle();
  assert.deepEqual(asked.slice(2), [[44 + 4_000, 44 + 7_999]]);
  assert.equal(source.loudest(0, { fromS: 49.9, toS: 50.1 }), 0.5);
  assert.equal(source.loudest(0, { fromS: 50.1, toS: 55 }), 0);
  assert.equal(source.loudest(0, { fromS: 90, toS: 99 }), 0);
  source.look({ fromS: 85, toS: 120 }); // never beyond the end
  await settle();
  assert.deepEqual(asked.slice(3), [[44 + 16_000, 44 + 19_999]]);
});

test("a sound that cannot be read is told, a piece that fails is asked for again", async () => {
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  let failed = 0;
  openPeaks(
    () => Promise.reject(new Error("gone")),
    () => {},
    () => (failed += 1),
  );
  await settle();
  assert.equal(failed, 1);
  const file = wav([0, 16_384], 1);
  let calls = 0;
  const source = openPeaks(
    async (first, last) => {
      calls += 1;
      if (calls === 2) throw new Error("lost");
      return file.slice(first, last + 1);
    },
    () => {},
    () => (failed += 1),
  );
  source.look({ fromS: 0, toS: 4 });
  await settle();
  assert.deepEqual([calls, failed], [3, 1]);
  assert.equal(source.loudest(0, { fromS: 0, toS: 0.1 }), 0.5);
});
