import assert from "node:assert/strict";
import { mock, test } from "node:test";

import {
  STATE_LOOKS,
  callStateOf,
  controlsFor,
  followStatus,
  hintOf,
  pauseHint,
  tabStateOf,
  throttledWarnings,
} from "../../../static/duplex/lib/call-state.js";
import { initialState } from "../../../static/duplex/lib/session-state.js";
import { setTexts } from "../../../static/shared/texts.js";

/** @import { SessionState } from "../../../static/duplex/lib/session-state.js" */

/** @param {Partial<SessionState>} given @returns {SessionState} */
const state = (given) => ({ ...initialState(), ...given });

test("each phase has a callState, and each callState a colour", () => {
  const callStates = /** @type {const} */ ([
    ["idle", "idle"],
    ["connecting", "connecting"],
    ["queued", "waiting"],
    ["preparing", "preparing"],
    ["running", "listening"],
    ["pausing", "pausing"],
    ["paused", "paused"],
    ["stopping", "stopping"],
    ["ended", "ended"],
  ]);
  for (const [phase, callState] of callStates) {
    assert.equal(callStateOf(state({ phase })), callState);
    assert.ok(STATE_LOOKS[callState]);
  }
});

test("while it runs the activity counts", () => {
  for (const activity of /** @type {const} */ (["listening", "thinking", "speaking", "interrupted"])) {
    assert.equal(callStateOf(state({ phase: "running", activity })), activity);
    assert.ok(STATE_LOOKS[activity]);
  }
  assert.equal(callStateOf(state({ phase: "pausing", activity: "speaking" })), "pausing");
});

test("only what makes sense can be pressed", () => {
  assert.deepEqual(controlsFor(state({ phase: "idle" })), {
    canStart: true,
    canStop: false,
    isStopShown: false,
    canResume: false,
    canInterrupt: false,
    isTalk: false,
  });
  const waiting = controlsFor(state({ phase: "queued" }));
  assert.ok(waiting.canStop && !waiting.isTalk && !waiting.canStart);
  const speaking = controlsFor(state({ phase: "running", activity: "speaking" }));
  assert.ok(speaking.canInterrupt && !speaking.canResume && speaking.canStop);
  assert.equal(controlsFor(state({ phase: "running", activity: "listening" })).canInterrupt, false);
  const paused = controlsFor(state({ phase: "paused" }));
  assert.ok(paused.canResume && paused.isTalk);
  assert.equal(controlsFor(state({ phase: "stopping" })).canStop, false);
  assert.ok(controlsFor(state({ phase: "ended" })).canStart);
  const starting = controlsFor(state({ phase: "ended" }), true);
  assert.deepEqual([starting.canStart, starting.canStop, starting.isStopShown], [false, true, true]);
});

test("while an answer is held back the model counts as listening", () => {
  assert.equal(callStateOf(state({ phase: "running", activity: "speaking" }), true), "listening");
  assert.equal(callStateOf(state({ phase: "running", activity: "thinking" }), true), "thinking");
});

test("a call whose connection is lost neither listens nor is paused, and its hint says so", () => {
  for (const phase of /** @type {const} */ (["running", "pausing", "paused"])) {
    const lost = state({ phase, activity: "listening", isLost: true, pauseEndsAtMs: 1 });
    assert.equal(callStateOf(lost), "connecting");
    assert.equal(tabStateOf(lost), "queued");
    assert.equal(pauseHint(lost, 0), null);
  }
  const call = { isMuted: false, canMute: true, isHalf: false };
  assert.notEqual(hintOf("connecting", { ...call, isLost: true }), hintOf("connecting", call));
});

test("the hint of a pause says how long it may still last", (context) => {
  setTexts("en", { "live.hint.paused": "{time}" });
  context.after(() => setTexts("en", {}));
  const paused = state({ phase: "paused", pauseTimeoutS: 60, pauseEndsAtMs: 61_000 });
  const shown = [1_000, 1_500, 2_000, 60_500, 62_000].map((nowMs) => pauseHint(paused, nowMs));
  assert.deepEqual(shown, ["1:00", "1:00", "0:59", "0:01", "0:00"]);
  assert.equal(pauseHint({ ...paused, phase: "running" }, 1_000), null);
});

test("a kind of warning is shown now and then only, and others not at all", () => {
  /** @type {string[]} */
  const shown = [];
  let nowMs = 0;
  const warn = throttledWarnings(
    (code) => void shown.push(code),
    () => nowMs,
  );
  for (const code of ["late_chunk", "late_chunk", "bad_frame", "of_no_interest"]) warn({ code });
  nowMs = 20_000;
  warn({ code: "late_chunk" });
  assert.deepEqual(shown, ["late_chunk", "bad_frame", "late_chunk"]);
});

test("a call without a microphone says so whenever it could hear, however slow the model is", () => {
  const without = { isMuted: false, canMute: false, isHalf: false };
  const listening = hintOf("listening", without);
  for (const callState of /** @type {const} */ (["hearing", "speaking", "thinking"])) {
    assert.equal(hintOf(callState, without), listening);
    assert.notEqual(hintOf(callState, { ...without, canMute: true }), listening);
  }
  assert.notEqual(hintOf("thinking", { ...without, isHalf: true }), hintOf("listening", { ...without, isHalf: true }));
  assert.notEqual(hintOf("paused", without), listening);
});

test("the page asks for the status when its call queues, leaves the queue and ends", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  /** @type {(state: {phase: string}) => void} */ let tell = () => {};
  let asked = 0;
  followStatus({ on: (_, listener) => (tell = listener) }, () => (asked += 1));
  const askedAfter = (/** @type {string[]} */ ...phases) => {
    const before = asked;
    for (const phase of phases) tell({ phase });
    return asked - before;
  };
  assert.equal(askedAfter("connecting"), 0);
  assert.equal(askedAfter("queued", "queued"), 1, "each place in the queue is a change of state");
  assert.equal(askedAfter("preparing"), 1);
  assert.equal(askedAfter("running", "pausing", "paused", "running", "stopping"), 0);
  assert.equal(askedAfter("ended", "ended"), 1);
  mock.timers.tick(1_000); // the server may free the place only after its last message
  assert.equal(asked, 4);
  mock.timers.reset();
});
