import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { startRefreshing } from "../../../static/admin/admin-api.js";

const PAUSE_MS = 5_000;

beforeEach(() => mock.timers.enable({ apis: ["setTimeout"] }));
afterEach(() => mock.timers.reset());

function stage({ isHidden = false } = {}) {
  /** @type {(isHidden: boolean) => void} */
  let tell = () => {};
  /** @type {(() => void)[]} */
  const running = [];
  const state = { isHidden, begun: 0 };
  const now = startRefreshing({
    work: () => {
      state.begun += 1;
      return new Promise((resolve) => void running.push(() => resolve()));
    },
    pauseMs: () => PAUSE_MS,
    visibility: { isHidden: () => state.isHidden, onChange: (listener) => ((tell = listener), () => {}) },
  });
  return {
    now,
    state,
    finish: async () => {
      running.shift()?.();
      await new Promise((resolve) => setImmediate(resolve));
    },
    see: (/** @type {boolean} */ isSeen) => {
      state.isHidden = !isSeen;
      tell(!isSeen);
    },
  };
}

test("work is done at once, and again after the pause", async () => {
  const { state, finish } = stage();
  mock.timers.tick(PAUSE_MS);
  assert.equal(state.begun, 1);
  await finish();
  mock.timers.tick(PAUSE_MS - 1);
  assert.equal(state.begun, 1);
  mock.timers.tick(1);
  assert.equal(state.begun, 2);
});

test("work is never done twice at once; a wish in between is followed after that", async () => {
  const { state, now, finish } = stage();
  void now();
  void now();
  assert.equal(state.begun, 1);
  await finish();
  assert.equal(state.begun, 2);
  await finish();
  assert.equal(state.begun, 2);
  mock.timers.tick(PAUSE_MS);
  assert.equal(state.begun, 3);
});

test("nothing is done while nobody looks", async () => {
  const { state, finish, see } = stage();
  await finish();
  see(false);
  mock.timers.tick(PAUSE_MS);
  assert.equal(state.begun, 1);
  see(true);
  assert.equal(state.begun, 2);
  see(false);
  await finish();
  mock.timers.tick(PAUSE_MS);
  assert.equal(state.begun, 2);
});

test("a page that opens unseen waits", () => {
  const { state, see } = stage({ isHidden: true });
  assert.equal(state.begun, 0);
  see(true);
  assert.equal(state.begun, 1);
});
