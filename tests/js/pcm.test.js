import assert from "node:assert/strict";
import { test } from "node:test";

import * as pcm from "../../static/shared/pcm.js";

/** @param {number} length */
const ramp = (length) => Float32Array.from({ length }, (_, i) => Math.sin(i) * (i % 7));

test("Base64 of samples is what the wire wants: little-endian float32", () => {
  const expected = Buffer.alloc(8);
  expected.writeFloatLE(0.5, 0);
  expected.writeFloatLE(-1, 4);
  assert.equal(pcm.floatsToBase64(Float32Array.of(0.5, -1)), expected.toString("base64"));
});

for (const length of [0, 1, 2, 3, 8_191, 8_192, 8_193, 16_000, 24_000]) {
  test(`${length} samples survive Base64`, () => {
    const samples = ramp(length);
    assert.deepEqual(pcm.base64ToFloats(pcm.floatsToBase64(samples)), samples);
  });
}

test("a view into a larger buffer is encoded alone", () => {
  const whole = ramp(10);
  const view = whole.subarray(3, 6);
  assert.deepEqual(pcm.base64ToFloats(pcm.floatsToBase64(view)), Float32Array.from(view));
});

test("half a sample is refused", () => {
  assert.throws(() => pcm.base64ToFloats(btoa("abcdef")), RangeError);
});

test("levels", () => {
  assert.equal(pcm.rms(new Float32Array(0)), 0);
  assert.ok(Math.abs(pcm.rms(Float32Array.of(3, -4, 3, -4)) - Math.sqrt(12.5)) < 1e-6);
  assert.equal(pcm.toDb(1), 0);
  assert.equal(pcm.toDb(0), pcm.FLOOR_DB);
  assert.ok(Math.abs(pcm.fromDb(pcm.toDb(0.1)) - 0.1) < 1e-12);
});

test("mono is the mean of the channels", () => {
  const mono = pcm.mixToMono([Float32Array.of(1, 0), Float32Array.of(0, -1)]);
  assert.deepEqual([...mono], [0.5, -0.5]);
  const single = ramp(3);
  assert.equal(pcm.mixToMono([single]), single);
  assert.equal(pcm.mixToMono([]).length, 0);
});

test("chunks join in order", () => {
  assert.deepEqual([...pcm.joinChunks([Float32Array.of(1, 2), Float32Array.of(3)])], [1, 2, 3]);
});

test("a WAV file has the right header and clipped interleaved samples", () => {
  const file = pcm.encodeWav([Float32Array.of(1, 2), Float32Array.of(-1, 0)], 16_000);
  const view = new DataView(file.buffer);
  const word = (/** @type {number} */ at) => String.fromCharCode(...file.subarray(at, at + 4));
  assert.deepEqual([word(0), word(8), word(12), word(36)], ["RIFF", "WAVE", "fmt ", "data"]);
  assert.equal(view.getUint32(4, true), file.length - 8);
  assert.equal(view.getUint16(20, true), 1);
  assert.equal(view.getUint16(22, true), 2);
  assert.equal(view.getUint32(24, true), 16_000);
  assert.equal(view.getUint32(28, true), 64_000);
  assert.equal(view.getUint16(32, true), 4);
  assert.equal(view.getUint16(34, true), 16);
  assert.equal(view.getUint32(40, true), 8);
  assert.deepEqual([...new Int16Array(file.buffer, 44)], [32_767, -32_767, 32_767, 0]);
});

/**
 * @param {number} stepMs between two frames
 * @param {number} quietMs how long it is quiet after half a second at -12 dB
 */
function meterAfter(stepMs, quietMs) {
  const motion = pcm.createMeterMotion();
  let shown = motion(-12, 0);
  for (let nowMs = stepMs; nowMs <= 500 + quietMs; nowMs += stepMs) shown = motion(nowMs <= 500 ? -12 : -59, nowMs);
  return shown;
}

test("the peak of a meter lingers, then falls; the bar falls sooner", () => {
  assert.deepEqual(meterAfter(50, 0), { barDb: -12, peakDb: -12 });
  assert.equal(meterAfter(50, 800).peakDb, -12);
  assert.ok(meterAfter(50, 500).barDb < -40);
  assert.ok(meterAfter(50, 3_000).peakDb < -50);
});

test("a meter falls equally fast at any frame rate", () => {
  for (const quietMs of [500, 2_000]) {
    const [slow, fast] = [meterAfter(50, quietMs), meterAfter(10, quietMs)];
    assert.ok(Math.abs(slow.barDb - fast.barDb) < 0.01 && Math.abs(slow.peakDb - fast.peakDb) < 2, JSON.stringify([slow, fast]));
  }
});
