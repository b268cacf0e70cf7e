import assert from "node:assert/strict";
import { test } from "node:test";

import { BARS, UserTurns, barsOf } from "../../../static/duplex/lib/session-state.js";

const LEVEL_MS = 50;

/**
 * @param {UserTurns} turns
 * @param {number} fromMs
 * @param {number} lengthMs
 * @param {number} rms
 * @returns {number} when it ended
 */
function feed(turns, fromMs, lengthMs, rms) {
  let nowMs = fromMs;
  for (; nowMs < fromMs + lengthMs; nowMs += LEVEL_MS) turns.push(rms, nowMs);
  return nowMs;
}

test("a sentence becomes one turn with its length, without the pause after it", () => {
  const turns = new UserTurns();
  let nowMs = feed(turns, 0, 1_000, 0.001);
  nowMs = feed(turns, nowMs, 2_000, 0.1);
  assert.equal(turns.turns.at(-1)?.isOpen, true);
  feed(turns, nowMs, 1_500, 0.001);
  assert.equal(turns.turns.length, 1);
  const [turn] = turns.turns;
  assert.equal(turn.isOpen, false);
  assert.equal(turn.startedAtMs, 1_000);
  assert.ok(Math.abs(turn.lengthMs - 2_000) <= 2 * LEVEL_MS);
  assert.ok(turn.bars.length > 0 && turn.bars.length <= BARS);
});

test("a short pause does not end a turn, a long one does", () => {
  const turns = new UserTurns();
  let nowMs = feed(turns, 0, 800, 0.1);
  nowMs = feed(turns, nowMs, 500, 0.001);
  nowMs = feed(turns, nowMs, 800, 0.1);
  nowMs = feed(turns, nowMs, 1_500, 0.001);
  nowMs = feed(turns, nowMs, 800, 0.1);
  feed(turns, nowMs, 1_500, 0.001);
  assert.equal(turns.turns.length, 2);
});

test("a click is no turn", () => {
  const turns = new UserTurns();
  feed(turns, feed(turns, 0, 100, 0.2), 2_000, 0.001);
  assert.equal(turns.turns.length, 0);
});

test("steady noise is no speech once it is known", () => {
  const turns = new UserTurns();
  feed(turns, feed(turns, 0, 500, 0.004), 5_000, 0.008);
  turns.end();
  assert.equal(turns.turns.length, 0);
});

test("the end of the call closes the open turn", () => {
  const turns = new UserTurns();
  feed(turns, 0, 1_000, 0.1);
  turns.end();
  assert.equal(turns.turns[0]?.isOpen, false);
  turns.clear();
  assert.equal(turns.turns.length, 0);
});

test("bars are shares of the loudest", () => {
  assert.deepEqual(barsOf([]), []);
  assert.deepEqual(barsOf([0, 0]), []);
  assert.deepEqual(barsOf([0.25, 1]), [0.5, 1]);
  assert.equal(barsOf(Array(500).fill(0.3)).length, BARS);
});
