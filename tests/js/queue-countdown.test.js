import assert from "node:assert/strict";
import test, { mock } from "node:test";

import { countdownAfter, countdownView, createQueueCountdown } from "../../static/duplex/lib/queue-chimes.js";

/** @param {number} etaS @param {number} [position] */
const report = (etaS, position = 2) => ({ etaS, position, queueLength: 3 });

test("the shown wait never rises while the position stays", () => {
  let pick = 3;
  const random = () => (pick = (pick * 48_271) % 2_147_483_647) / 2_147_483_647;
  let state = countdownAfter(null, report(100), 0);
  let shownS = 100;
  for (let nowMs = 0; nowMs < 300_000; nowMs += 700) {
    if (random() < 0.4) state = countdownAfter(state, report(random() * 200), nowMs);
    const view = countdownView(state, nowMs);
    assert.ok(view.shownS <= shownS);
    ({ shownS } = view);
  }
});

test("a changed position may raise it", () => {
  const before = countdownAfter(null, report(10), 0);
  assert.equal(countdownView(countdownAfter(before, report(60), 1_000), 1_000).shownS, 9);
  assert.equal(countdownView(countdownAfter(before, report(60, 3), 1_000), 1_000).shownS, 60);
  assert.equal(countdownView(countdownAfter(before, report(4), 1_000), 1_000).shownS, 4);
});

test("below zero is overtime", () => {
  const state = countdownAfter(null, report(2), 0);
  assert.deepEqual(countdownView(state, 2_000), { shownS: 0, isOvertime: false, overtimeS: 0, position: 2, queueLength: 3 });
  const late = countdownView(state, 5_500);
  assert.deepEqual([late.shownS, late.isOvertime, late.overtimeS], [0, true, 3]);
});

test("it ticks once a second until it is stopped", () => {
  mock.timers.enable({ apis: ["setInterval"] });
  let nowMs = 0;
  /** @type {number[]} */
  const shown = [];
  const countdown = createQueueCountdown(
    (view) => shown.push(view.shownS),
    () => nowMs,
  );
  countdown.update(report(3));
  for (let second = 0; second < 2; second += 1) {
    nowMs += 1_000;
    mock.timers.tick(1_000);
  }
  countdown.stop();
  mock.timers.tick(5_000);
  assert.deepEqual(shown, [3, 2, 1]);
  countdown.update(report(50));
  assert.equal(shown.at(-1), 50, "a new wait begins afresh");
  countdown.stop();
  mock.timers.reset();
});
