import assert from "node:assert/strict";
import { test } from "node:test";

import { duplexMetrics, gradeHigh, gradeLow } from "../../../static/duplex/lib/call-texts.js";
import { initialState } from "../../../static/duplex/lib/session-state.js";

/** @import { SessionState } from "../../../static/duplex/lib/session-state.js" */
/** @import { UnitRecord } from "../../../static/duplex/lib/full-duplex.js" */

/** @param {Partial<SessionState>} given @returns {SessionState} */
const state = (given) => ({ ...initialState(), ...given });

/** The grades by metric. @param {SessionState} session */
const gradesOf = (session) =>
  Object.fromEntries(
    duplexMetrics(session, { maxKvTokens: 8_192, delayMs: 200, modelName: "", hasVision: true })
      .filter(({ grade }) => grade !== undefined)
      .map(({ name, grade }) => [name, grade]),
  );

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
  assert.deepEqual(Object.values(gradesOf(initialState())), Array(6).fill("none"));
});

/** @param {Partial<UnitRecord>} given */
const units = (given) => [/** @type {UnitRecord} */ ({ costAllMs: 100, wallClockMs: 120, ...given })];

test("memory is graded by its share, a unit by its budget", () => {
  const grades = gradesOf(state({ units: units({ wallClockMs: 950 }), kvTokens: 5_000 }));
  assert.equal(grades.kv, "caution");
  assert.equal(grades.infer, "caution");
});

test("drift counts in both directions", () => {
  assert.equal(gradesOf(state({ driftMs: -300 })).drift, "bad");
  assert.equal(gradesOf(state({ driftMs: -20 })).drift, "good");
});

test("sound ahead matters only while the model speaks on", () => {
  assert.equal(gradesOf(state({ aheadMs: 0 })).ahead, "none");
  const speaking = state({ phase: "running", activity: "speaking", isTurnOpen: true, aheadMs: 20 });
  assert.equal(gradesOf(speaking).ahead, "bad");
});
