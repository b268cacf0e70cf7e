import assert from "node:assert/strict";
import { test } from "node:test";

import { PlaybackSchedule } from "../../static/duplex/lib/playback-schedule.js";
import { makeNoise } from "./speech-scene.js";

/** @import { Placed } from "../../static/duplex/lib/playback-schedule.js" */

/** @param {number} actual @param {number} expected */
const assertNear = (actual, expected) => assert.ok(Math.abs(actual - expected) < 1e-6, `${actual} is not ${expected}`);

/** @param {Placed} placed */
const startOf = ({ placement }) => placement?.startS ?? NaN;

/**
 * Chunks of one turn that come each period, late by what `latenessS` says.
 * @param {PlaybackSchedule} schedule
 * @param {{count: number, unitS?: number, fromS?: number, latenessS: (i: number) => number}} producer
 * @returns {number[]} when gaps were counted, seconds since the turn's begin
 */
function runTurn(schedule, { count, unitS = 1, fromS = 0, latenessS }) {
  const gaps = [];
  schedule.beginTurn();
  for (let i = 0; i < count; i += 1) {
    const now = fromS + i * unitS + latenessS(i);
    if (schedule.place(unitS, now).isCounted) gaps.push(now - fromS);
  }
  schedule.endTurn();
  return gaps;
}

test("the first chunk waits the delay, the next ones follow without a seam", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  schedule.beginTurn();
  assertNear(startOf(schedule.place(1, 10)), 10.2);
  assertNear(startOf(schedule.place(0.5, 10.9)), 11.2);
  assertNear(startOf(schedule.place(1, 11)), 11.7);
  assertNear(schedule.aheadS(11), 1.7);
  assert.equal(schedule.gapCount, 0);
});

test("start times lie on the sample grid and chunks never overlap", () => {
  const gridHz = 44_100;
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2, gridHz });
  schedule.beginTurn();
  let endS = 0;
  for (let i = 0; i < 50; i += 1) {
    const durationS = (40_000 + i) / gridHz;
    const startS = startOf(schedule.place(durationS, 3.123_456 + i * 0.9));
    assert.ok(Math.abs(startS * gridHz - Math.round(startS * gridHz)) < 1e-3);
    if (i > 0) assertNear(startS, endS);
    endS = startS + durationS;
  }
});

test("a late chunk is a counted gap and raises the delay of the next turn", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  schedule.beginTurn();
  schedule.place(1, 0);
  const late = schedule.place(1, 1.5);
  assert.equal(late.isCounted, true);
  assertNear(late.gapS, 0.4);
  assert.equal(schedule.gapCount, 1);
  assertNear(schedule.totalShiftS, late.gapS);
  assert.ok(schedule.targetDelayS > 0.5);
});

test("a gap nobody hears shifts but is not counted", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0 });
  schedule.beginTurn();
  schedule.place(1, 0);
  const late = schedule.place(1, 1.005);
  assert.equal(late.isCounted, false);
  assertNear(schedule.totalShiftS, 0.005);
});

test("silence between turns is no gap", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  runTurn(schedule, { count: 2, latenessS: () => 0 });
  runTurn(schedule, { count: 2, fromS: 60, latenessS: () => 0 });
  assert.equal(schedule.gapCount, 0);
  assert.equal(schedule.turnCount, 2);
});

test("a turn that comes early waits for the end of the last one", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  schedule.beginTurn();
  schedule.place(3, 0);
  schedule.beginTurn();
  assertNear(startOf(schedule.place(1, 1)), 3.2);
});

for (const baseDelayS of [0, 0.1, 0.2]) {
  test(`50 ms of jitter: no gap after the first 10 s in 30 minutes (base delay ${baseDelayS} s)`, () => {
    for (let seed = 1; seed <= 20; seed += 1) {
      const noise = makeNoise(seed);
      const schedule = new PlaybackSchedule({ baseDelayS });
      const gaps = runTurn(schedule, { count: 1_800, latenessS: () => 0.025 * (1 + noise()) });
      assert.deepEqual(
        gaps.filter((atS) => atS > 10),
        [],
        `seed ${seed}`,
      );
    }
  });
}

test("many short turns with jitter are as whole", () => {
  const noise = makeNoise(3);
  const schedule = new PlaybackSchedule({ baseDelayS: 0.05 });
  const gaps = [];
  for (let turn = 0; turn < 100; turn += 1) {
    const fromS = turn * 12;
    const late = runTurn(schedule, { count: 6, fromS, latenessS: () => 0.025 * (1 + noise()) });
    gaps.push(...late.map((atS) => atS + fromS));
  }
  assert.deepEqual(
    gaps.filter((atS) => atS > 10),
    [],
  );
});

test("a producer that stalls now and then tears the answer only the first times", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  let gapCount = 0;
  for (let turn = 0; turn < 10; turn += 1) {
    const latenessS = (/** @type {number} */ i) => (i % 5 === 3 ? 0.45 : 0);
    gapCount += runTurn(schedule, { count: 20, fromS: turn * 30, latenessS }).length;
  }
  assert.ok(gapCount <= 2, `${gapCount} gaps`);
});

test("the delay shrinks again, slowly, to the base delay", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  runTurn(schedule, { count: 3, latenessS: (i) => (i === 2 ? 0.6 : 0) });
  const raisedS = schedule.targetDelayS;
  assert.ok(raisedS > 0.5);
  runTurn(schedule, { count: 10, fromS: 100, latenessS: () => 0 });
  assert.ok(schedule.targetDelayS < raisedS && schedule.targetDelayS > raisedS - 0.1);
  runTurn(schedule, { count: 200, fromS: 200, latenessS: () => 0 });
  assertNear(schedule.targetDelayS, 0.2);
});

test("the delay never rises above its bound", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2, maxDelayS: 1 });
  runTurn(schedule, { count: 50, latenessS: (i) => i * 0.5 });
  assert.equal(schedule.targetDelayS, 1);
});

test("beyond the bound the newest sound is refused", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0, maxAheadS: 5 });
  schedule.beginTurn();
  const placed = Array.from({ length: 10 }, () => schedule.place(1, 0));
  assert.equal(placed.filter(({ placement }) => placement !== null).length, 6);
  assert.notEqual(schedule.place(1, 3).placement, null);
});

test("flush forgets what was queued and is no gap", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  schedule.beginTurn();
  schedule.place(1, 0);
  schedule.place(1, 0.1);
  assertNear(schedule.flush(0.7), 1.5);
  assert.equal(schedule.aheadS(0.7), 0);
  assert.equal(schedule.isPlaying(0.7), false);
  schedule.beginTurn();
  assertNear(startOf(schedule.place(1, 0.8)), 1);
  assert.equal(schedule.gapCount, 0);
  assert.equal(schedule.flush(5), 0);
});

test("a hold loses nothing: what waits goes on where it stopped", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  schedule.beginTurn();
  schedule.place(1, 0);
  schedule.place(1, 0.9);
  schedule.hold(0.7);
  assert.equal(schedule.isHeld, true);
  assertNear(startOf(schedule.place(1, 1.9)), 2.2);
  assertNear(schedule.aheadS(4), 2.5);
  assert.equal(schedule.isPlaying(100), true);
  const resumed = schedule.release(2.7);
  resumed.forEach(({ startS }, i) => assertNear(startS, 2.2 + i));
  assertNear(schedule.aheadS(2.7), 2.5);
  assertNear(startOf(schedule.place(1, 3)), 5.2);
  assert.equal(schedule.gapCount, 0);
});

test("a chunk that came late during a hold makes no gap", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  schedule.beginTurn();
  schedule.place(1, 0);
  schedule.hold(1.1);
  assert.equal(schedule.place(1, 9).isCounted, false);
  schedule.release(10);
  assert.equal(schedule.gapCount, 0);
});

test("what is finished is forgotten", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0 });
  schedule.beginTurn();
  schedule.place(1, 0);
  assert.equal(schedule.isPlaying(0.5), true);
  assert.equal(schedule.isPlaying(1), false);
  schedule.hold(2);
  assert.deepEqual(schedule.release(3), []);
});

test("a new base delay counts from the next turn on", () => {
  const schedule = new PlaybackSchedule({ baseDelayS: 0.2 });
  schedule.setBaseDelay(0.5);
  schedule.beginTurn();
  assertNear(startOf(schedule.place(1, 0)), 0.5);
});
