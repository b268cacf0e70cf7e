import assert from "node:assert/strict";
import { test } from "node:test";

import { COLUMNS_SHOWN, columnOf, columnsOf, heightMs, kindOf } from "../../../static/duplex/lib/call-texts.js";

/** @import { UnitRecord } from "../../../static/duplex/lib/full-duplex.js" */

const LIMITS = { chunkMs: 1_000, maxKvTokens: 8_000 };

/** @param {Partial<UnitRecord>} given @returns {UnitRecord} */
const unit = (given = {}) => ({
  step: 0,
  turnId: 0,
  isListen: true,
  isEndOfTurn: false,
  isBargeIn: false,
  isMuted: false,
  prefillMs: 0,
  costLlmMs: 0,
  costTtsMs: 0,
  costToken2wavMs: null,
  costAllMs: 0,
  wallClockMs: 0,
  kvTokens: 0,
  visionSlices: 0,
  visionTokens: 0,
  heardMs: 0,
  arrivalMs: 0,
  aheadMs: null,
  gapMs: 0,
  ...given,
});

test("stages add up to the whole unit; what no stage explains is the rest", () => {
  const costs = { prefillMs: 50, costLlmMs: 200, costTtsMs: 100, costToken2wavMs: 150, costAllMs: 560 };
  assert.deepEqual(columnOf(unit(costs), LIMITS).stagesMs, { read: 50, think: 200, voice: 100, sound: 150, rest: 60 });
});

test("a sum above the whole leaves no negative rest", () => {
  assert.equal(columnOf(unit({ costLlmMs: 300, costAllMs: 200 }), LIMITS).stagesMs.rest, 0);
});

test("a unit listened, spoke or was broken off", () => {
  assert.equal(kindOf(unit()), "listen");
  assert.equal(kindOf(unit({ isListen: false })), "speak");
  assert.equal(kindOf(unit({ isBargeIn: true })), "interrupt");
  assert.equal(kindOf(unit({ isListen: false, isMuted: true })), "interrupt");
});

test("late is over the budget, by work or by the clock", () => {
  assert.equal(columnOf(unit({ costAllMs: 990, wallClockMs: 995 }), LIMITS).isLate, false);
  assert.equal(columnOf(unit({ costAllMs: 1_010 }), LIMITS).isLate, true);
  assert.equal(columnOf(unit({ costAllMs: 10, wallClockMs: 1_200 }), LIMITS).isLate, true);
});

test("shares stay between 0 and 1", () => {
  const column = columnOf(unit({ kvTokens: 9_999, aheadMs: 5_000 }), LIMITS);
  assert.equal(column.kvShare, 1);
  assert.equal(column.aheadShare, 1);
  assert.equal(columnOf(unit({ kvTokens: 10 }), { chunkMs: 1_000, maxKvTokens: 0 }).kvShare, 0);
});

test("only the last units are shown", () => {
  const units = Array.from({ length: 100 }, (_, step) => unit({ step }));
  const columns = columnsOf(units, LIMITS);
  assert.equal(columns.length, COLUMNS_SHOWN);
  assert.equal(columns[0].step, 40);
  assert.equal(columns.at(-1)?.step, 99);
});

test("the picture has room for the budget and grows with slow units up to a bound", () => {
  assert.equal(heightMs([], 1_000), 1_200);
  assert.equal(heightMs(columnsOf([unit({ costAllMs: 2_000 })], LIMITS), 1_000), 2_400);
  assert.equal(heightMs(columnsOf([unit({ costAllMs: 90_000 })], LIMITS), 1_000), 3_600);
});
