import assert from "node:assert/strict";
import { test } from "node:test";

import { fromDb } from "../../static/shared/pcm.js";
import { gainToTargetDb, measureLufs } from "../../static/duplex/lib/measure.js";

/** @param {number} levelDb @param {number} lengthS @param {number} [hz] @param {number} [rateHz] */
function sine(levelDb, lengthS, hz = 997, rateHz = 48_000) {
  const peak = fromDb(levelDb);
  const length = Math.round(lengthS * rateHz);
  return Float32Array.from({ length }, (_, i) => peak * Math.sin((2 * Math.PI * hz * i) / rateHz));
}

/** @param {number} actual @param {number} expected @param {number} [tolerance] LU */
const assertLufs = (actual, expected, tolerance = 0.1) =>
  assert.ok(Math.abs(actual - expected) <= tolerance, `${actual} is not ${expected}`);

/** @param {...Float32Array} parts */
const join = (...parts) => Float32Array.from(parts.flatMap((part) => [...part]));

for (const rateHz of [16_000, 24_000, 44_100, 48_000, 96_000]) {
  test(`a 997 Hz sine at -23 dBFS on both channels is -23 LUFS at ${rateHz} Hz`, () => {
    const channel = sine(-23, 5, 997, rateHz);
    assertLufs(measureLufs([channel, channel], rateHz), -23);
  });
}

test("a full-scale 997 Hz sine on one channel is -3.01 LUFS", () => {
  assertLufs(measureLufs([sine(0, 5)], 48_000), -3.01, 0.05);
});

// Source: EBU Tech 3341, minimum requirements test signals 1 to 5 (1 kHz, both channels); at a lower rate,
// since the standard's filters are set up for any.
const EBU_RATE_HZ = 8_000;

test("EBU 3341 case 2: -33 dBFS is -33 LUFS", () => {
  const channel = sine(-33, 10, 1_000, EBU_RATE_HZ);
  assertLufs(measureLufs([channel, channel], EBU_RATE_HZ), -33);
});

test("EBU 3341 case 3: the relative gate leaves quiet parts out", () => {
  const channel = join(sine(-36, 10, 1_000, EBU_RATE_HZ), sine(-23, 60, 1_000, EBU_RATE_HZ), sine(-36, 10, 1_000, EBU_RATE_HZ));
  assertLufs(measureLufs([channel, channel], EBU_RATE_HZ), -23);
});

test("EBU 3341 case 4: the absolute gate leaves near-silence out", () => {
  const channel = join(
    sine(-72, 10, 1_000, EBU_RATE_HZ),
    sine(-36, 10, 1_000, EBU_RATE_HZ),
    sine(-23, 60, 1_000, EBU_RATE_HZ),
    sine(-36, 10, 1_000, EBU_RATE_HZ),
    sine(-72, 10, 1_000, EBU_RATE_HZ),
  );
  assertLufs(measureLufs([channel, channel], EBU_RATE_HZ), -23);
});

test("EBU 3341 case 5: parts within the gate are averaged by power", () => {
  const channel = join(sine(-26, 20, 1_000, EBU_RATE_HZ), sine(-20, 20.1, 1_000, EBU_RATE_HZ), sine(-26, 20, 1_000, EBU_RATE_HZ));
  assertLufs(measureLufs([channel, channel], EBU_RATE_HZ), -23);
});

test("low tones count less and high tones more", () => {
  const at = (/** @type {number} */ hz) => measureLufs([sine(-20, 3, hz)], 48_000);
  assert.ok(at(30) < at(997) - 3);
  assertLufs(at(10_000) - at(997), 3.3, 0.3);
});

test("silence, or less than one block, has no loudness", () => {
  assert.equal(measureLufs([new Float32Array(48_000)], 48_000), -Infinity);
  assert.equal(measureLufs([sine(0, 0.3)], 48_000), -Infinity);
  assert.equal(measureLufs([], 48_000), -Infinity);
});

test("the gain to a target is bounded, and silence is left alone", () => {
  assert.equal(gainToTargetDb(-20, -33), -13);
  assert.equal(gainToTargetDb(-60, -23), 30);
  assert.equal(gainToTargetDb(-Infinity, -23), 0);
});
