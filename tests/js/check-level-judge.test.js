import assert from "node:assert/strict";
import { test } from "node:test";

import { createLevelJudge } from "../../static/check/results.js";

const STEP_MS = 50;

/**
 * @param {ReturnType<typeof createLevelJudge>} judge
 * @param {number} db RMS
 * @param {number} lengthMs
 * @param {{fromMs?: number, peak?: number, isSilent?: boolean}} [options]
 */
function hear(judge, db, lengthMs, { fromMs = 0, peak, isSilent = false } = {}) {
  const rms = isSilent ? 0 : 10 ** (db / 20);
  let view;
  for (let nowMs = fromMs; nowMs < fromMs + lengthMs; nowMs += STEP_MS) {
    view = judge({ rms, peak: peak ?? Math.min(0.9, rms * 2), isSilent }, nowMs);
  }
  assert.ok(view);
  return view;
}

test("words follow the loudness", () => {
  assert.equal(hear(createLevelJudge(), -25, 500).word, "good");
  assert.equal(hear(createLevelJudge(), -42, 500).word, "quiet");
  assert.equal(hear(createLevelJudge(), -58, 500).word, "waiting");
  assert.equal(hear(createLevelJudge(), -10, 500, { peak: 1 }).word, "loud");
});

test("a single click is not too loud", () => {
  const judge = createLevelJudge();
  hear(judge, -25, 500);
  assert.equal(hear(judge, -25, STEP_MS, { fromMs: 500, peak: 1 }).word, "good");
});

test("only zeros for two seconds are silence, a whisper of noise is not", () => {
  const judge = createLevelJudge();
  assert.equal(hear(judge, 0, 1_500, { isSilent: true }).word, "waiting");
  assert.equal(hear(judge, 0, 1_000, { fromMs: 1_500, isSilent: true }).word, "silent");
  assert.equal(hear(judge, -80, 100, { fromMs: 2_500 }).word, "waiting");
});

test("a breath between two words does not change the word", () => {
  const judge = createLevelJudge();
  hear(judge, -25, 500);
  assert.equal(hear(judge, -59, 1_500, { fromMs: 500 }).word, "good");
  assert.equal(hear(judge, -59, 2_000, { fromMs: 2_000 }).word, "waiting");
});

test("good speech is counted, pauses are not", () => {
  const judge = createLevelJudge();
  hear(judge, -25, 1_000);
  const counted = hear(judge, -59, 1_000, { fromMs: 1_000 }).goodMs;
  assert.ok(counted >= 900 && counted <= 1_000, `${counted} ms`);
});
