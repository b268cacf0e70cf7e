import assert from "node:assert/strict";
import { test } from "node:test";

import { initialState } from "../../../static/duplex/lib/session-state.js";
import { reduce } from "../../../static/duplex/lib/full-duplex.js";

const TURN = Object.freeze({ turnId: 0, text: "Hello.", startedAtMs: 0, endedAtMs: 900, isInterrupted: false });

test("an answer that had come whole and was still sounding counts as interrupted", () => {
  const state = { ...initialState(), phase: /** @type {const} */ ("running"), turns: [TURN], aheadMs: 800 };
  assert.equal(reduce(state, { type: "interrupt_asked" }).turns[0].isInterrupted, true);
});

test("an answer that was heard to its end does not", () => {
  const state = { ...initialState(), phase: /** @type {const} */ ("running"), turns: [TURN], aheadMs: 0 };
  assert.equal(reduce(state, { type: "interrupt_asked" }).turns[0].isInterrupted, false);
});
