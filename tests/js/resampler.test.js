import assert from "node:assert/strict";
import { test } from "node:test";

import { rms, toDb } from "../../static/shared/pcm.js";
import { Resampler } from "../../static/duplex/lib/resampler.js";
import { resample } from "./fakes/resample.js";

/** @param {number} frequencyHz @param {number} rateHz @param {number} lengthS */
function sine(frequencyHz, rateHz, lengthS) {
  const length = Math.round(rateHz * lengthS);
  return Float32Array.from({ length }, (_, i) => Math.sin((2 * Math.PI * frequencyHz * i) / rateHz));
}

/** The middle half: away from the edges, where the signal begins and ends. @param {Float32Array} x */
const middle = (x) => x.subarray(x.length >> 2, (x.length * 3) >> 2);

/** A deterministic noise. @param {number} length */
function noise(length) {
  let state = 12_345;
  return Float32Array.from({ length }, () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return state / 2 ** 31 - 1;
  });
}

for (const [fromHz, toHz] of [
  [48_000, 16_000],
  [44_100, 16_000],
  [96_000, 16_000],
]) {
  test(`${fromHz} to ${toHz} Hz: what would fold back is at least 60 dB down`, () => {
    for (const part of [1.0, 1.02, 1.1, 1.3, 1.7, 2.2]) {
      const frequencyHz = Math.min((toHz / 2) * part, fromHz / 2 - 100);
      const output = resample(sine(frequencyHz, fromHz, 0.5), fromHz, toHz);
      const rejectionDb = toDb(Math.SQRT1_2) - toDb(rms(middle(output)));
      assert.ok(rejectionDb >= 60, `${frequencyHz} Hz: ${rejectionDb.toFixed(1)} dB`);
    }
  });
}

for (const [fromHz, toHz] of [
  [48_000, 16_000],
  [44_100, 16_000],
  [8_000, 16_000],
  [24_000, 48_000],
  [24_000, 44_100],
]) {
  test(`${fromHz} to ${toHz} Hz: tones of the passband arrive in place and in size`, () => {
    const nyquistHz = Math.min(fromHz, toHz) / 2;
    for (const part of [0.02, 0.1, 0.4, 0.7, 0.85]) {
      const frequencyHz = nyquistHz * part;
      const output = middle(resample(sine(frequencyHz, fromHz, 0.4), fromHz, toHz));
      const start = Math.ceil(0.4 * toHz) >> 2;
      const error = output.map((value, i) => value - Math.sin((2 * Math.PI * frequencyHz * (start + i)) / toHz));
      assert.ok(toDb(rms(error)) < -60, `${frequencyHz} Hz: error ${toDb(rms(error)).toFixed(1)} dB`);
    }
  });
}

test("a stream is the same however it is split", () => {
  const input = noise(20_000);
  for (const [fromHz, toHz] of [
    [48_000, 16_000],
    [44_100, 16_000],
    [24_000, 44_100],
  ]) {
    const whole = resample(input, fromHz, toHz);
    for (const size of [1, 127, 128, 441, 5_000]) {
      const resampler = new Resampler(fromHz, toHz);
      const parts = [];
      for (let at = 0; at < input.length; at += size) {
        const block = input.subarray(at, at + size);
        const output = new Float32Array(resampler.maxOutputSamples(block.length));
        parts.push(...output.subarray(0, resampler.process(block, output)));
      }
      const tail = new Float32Array(resampler.maxOutputSamples(0));
      parts.push(...tail.subarray(0, resampler.flush(tail)));
      assert.deepEqual(Float32Array.from(parts), whole);
    }
  }
});

test("the output is as long as the input", () => {
  for (const length of [1, 100, 128, 44_100]) {
    assert.equal(resample(noise(length), 44_100, 16_000).length, Math.ceil((length * 160) / 441));
    assert.equal(resample(noise(length), 24_000, 48_000).length, length * 2);
  }
});

test("after flush a new stream begins", () => {
  const input = noise(3_000);
  const resampler = new Resampler(48_000, 16_000);
  const first = new Float32Array(2_000);
  const second = new Float32Array(2_000);
  const firstLength = resampler.process(input, first);
  resampler.flush(new Float32Array(resampler.maxOutputSamples(0)));
  assert.equal(resampler.process(input, second), firstLength);
  assert.deepEqual(second, first);
});

test("impossible rates are refused", () => {
  assert.throws(() => new Resampler(0, 16_000), RangeError);
  assert.throws(() => new Resampler(44_100.5, 16_000), RangeError);
  assert.throws(() => new Resampler(47_999, 16_001), RangeError);
});
