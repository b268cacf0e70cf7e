import assert from "node:assert/strict";
import test from "node:test";

import { startRefreshing } from "../../../static/admin/admin-api.js";

function stage({ isHidden = false } = {}) {
  /** @type {((isHidden: boolean) => void)[]} */
  const listeners = [];
  /** @type {Map<number, () => void>} */
  const timers = new Map();
  let nextTimer = 1;
  /** @type {(() => void)[]} */
  const running = [];
  const state = { isHidden, begun: 0 };
  const refresher = startRefreshing({
    work: () => {
      state.begun += 1;
      return new Promise((resolve) => void running.push(() => resolve()));
    },
    pauseMs: () => 5_000,
    visibility: {
      isHidden: () => state.isHidden,
      onChange: (listener) => {
        listeners.push(listener);
        return () => void listeners.splice(listeners.indexOf(listener), 1);
      },
      onPageHide: () => () => {},
    },
    setTimer: (run) => {
      timers.set(nextTimer, run);
      return nextTimer++;
    },
    clearTimer: (timer) => void timers.delete(/** @type {number} */ (timer)),
  });
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  return {
    refresher,
    state,
    timers,
    listeners,
    settle,
    finish: async () => {
      running.shift()?.();
      await settle();
    },
    tick: () => {
      const [timer, run] = [...timers][0];
      timers.delete(timer);
      run();
    },
    see: (/** @type {boolean} */ isSeen) => {
      state.isHidden = !isSeen;
      [...listeners].forEach((listener) => listener(!isSeen));
    },
  };
}

test("work is done at once, and again after the pause", async () => {
  const { state, timers, finish, tick } = stage();
  assert.deepEqual([state.begun, timers.size], [1, 0]);
  await finish();
  assert.equal(timers.size, 1);
  tick();
  assert.equal(state.begun, 2);
});

test("work is never done twice at once; a wish in between is followed after that", async () => {
  const { state, refresher, timers, finish } = stage();
  void refresher.now();
  void refresher.now();
  assert.equal(state.begun, 1);
  await finish();
  assert.deepEqual([state.begun, timers.size], [2, 0]);
  await finish();
  assert.deepEqual([state.begun, timers.size], [2, 1]);
});

test("nothing is done while nobody looks", async () => {
  const { state, timers, finish, see } = stage();
  await finish();
  see(false);
  assert.equal(timers.size, 0);
  see(true);
  assert.equal(state.begun, 2);
  see(false);
  await finish();
  assert.equal(timers.size, 0);
});

test("a page that opens unseen waits", () => {
  const { state, see } = stage({ isHidden: true });
  assert.equal(state.begun, 0);
  see(true);
  assert.equal(state.begun, 1);
});

test("after its end nothing is done any more", async () => {
  const { state, refresher, timers, listeners, finish } = stage();
  refresher.close();
  await finish();
  assert.deepEqual([state.begun, timers.size, listeners.length], [1, 0, 0]);
});
