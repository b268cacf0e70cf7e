import assert from "node:assert/strict";
import { test } from "node:test";

import { figuresOf, gradeHigh, gradeLow } from "../../../static/duplex/lib/call-texts.js";
import { initialState } from "../../../static/duplex/lib/session-state.js";

/** @import { SessionState } from "../../../static/duplex/lib/session-state.js" */
/** @import { UnitRecord } from "../../../static/duplex/lib/full-duplex.js" */

/** @param {Partial<SessionState>} given @returns {SessionState} */
const state = (given) => ({ ...initialState(), ...given });

test("limits belong to the better grade", () => {
  assert.deepEqual(
    [0, 50, 51, 200, 201].map((value) => gradeLow(value, [50, 200])),
    ["good", "good", "caution", "caution", "bad"],
  );
  assert.deepEqual(
    [300, 200, 199, 50, 49].map((value) => gradeHigh(value, [200, 50])),
    ["good", "good", "caution", "caution", "bad"],
  );
});

test("what is not known has no grade", () => {
  assert.equal(gradeLow(null, [1, 2]), "none");
  assert.equal(gradeLow(Number.NaN, [1, 2]), "none");
  const { grades, kvShare } = figuresOf(initialState(), 8_192);
  assert.equal(kvShare, null);
  assert.deepEqual(Object.values(grades), Array(6).fill("none"));
});

/** @param {Partial<UnitRecord>} given */
const units = (given) => [/** @type {UnitRecord} */ ({ costAllMs: 100, wallClockMs: 120, ...given })];

test("memory is graded by its share, a unit by its budget", () => {
  const { grades, kvShare } = figuresOf(state({ units: units({ wallClockMs: 950 }), kvTokens: 5_000 }), 8_192);
  assert.ok(kvShare && kvShare > 0.6);
  assert.equal(grades.kv, "caution");
  assert.equal(grades.infer, "caution");
});

test("drift counts in both directions", () => {
  assert.equal(figuresOf(state({ driftMs: -300 }), 8_192).grades.drift, "bad");
  assert.equal(figuresOf(state({ driftMs: -20 }), 8_192).grades.drift, "good");
});

test("sound ahead matters only while the model speaks on", () => {
  assert.equal(figuresOf(state({ aheadMs: 0 }), 8_192).grades.ahead, "none");
  const speaking = state({ phase: "running", activity: "speaking", isTurnOpen: true, aheadMs: 20 });
  assert.equal(figuresOf(speaking, 8_192).grades.ahead, "bad");
});
