import assert from "node:assert/strict";
import { test } from "node:test";

import { latencyFigures } from "../../../static/viewer/time-axis.js";
import { planUnits } from "../../../static/viewer/recording.js";

/** @import { Chunk } from "../../../types/recording.js" */

/** @param {Partial<Chunk>[]} chunks @param {object} [more] */
const recordingOf = (chunks, more = {}) => ({
  session_id: "r",
  mode: "duplex",
  start_ts: "2026-01-01T00:00:00Z",
  config: { chunk_ms: 1_000 },
  chunks: chunks.map((chunk, index) => ({
    index,
    user_audio: "u.wav",
    user_audio_duration_ms: 1_000,
    receive_ts_ms: (index + 1) * 1_000,
    ...chunk,
  })),
  ...more,
});
/** @returns {Partial<Chunk>} */
const listen = (more = {}) => ({ result: { mode: "LISTEN", timing: { wall_clock_ms: 20 }, ...more } });
/** @returns {Partial<Chunk>} */
const speak = (/** @type {string} */ text, aiMs = 1_000, more = {}) => ({
  result: { mode: "SPEAK", text, timing: { wall_clock_ms: 200 }, ai_audio: "a.wav", ai_audio_duration_ms: aiMs, ...more },
});

test("units stand back to back, each as long as what was heard in it", () => {
  const plan = planUnits(recordingOf([listen(), { ...listen(), user_audio_duration_ms: 640 }, listen()]));
  assert.deepEqual(
    plan.units.map(({ startS, endS }) => [startS, endS]),
    [
      [0, 1],
      [1, 1.64],
      [1.64, 2.64],
    ],
  );
  assert.equal(plan.durationS, 2.64);
  assert.equal(plan.unitS, 1);
});

test("an answer that lasts longer than its unit goes on after it and lengthens the whole", () => {
  const plan = planUnits(recordingOf([listen(), speak("a long answer", 2_500, { end_of_turn: true })]));
  assert.equal(plan.durationS, 3.5);
  assert.deepEqual(
    plan.turns.map(({ startS, endS, text }) => ({ startS, endS, text })),
    [{ startS: 1, endS: 3.5, text: "a long answer" }],
  );
});

test("the next answer begins after the one before has been heard", () => {
  const plan = planUnits(recordingOf([speak("one", 1_800, { end_of_turn: true }), speak("two", 1_000, { end_of_turn: true })]));
  assert.equal(plan.durationS, 2.8);
});

test("words of one turn join until it ends", () => {
  const plan = planUnits(recordingOf([speak("Hello"), speak(" there", 1_000, { end_of_turn: true }), listen(), speak("Bye")]));
  assert.deepEqual(
    plan.turns.map(({ text }) => text),
    ["Hello there", "Bye"],
  );
  assert.deepEqual(
    plan.turns[0].words.map(({ atS }) => atS),
    [0, 1],
  );
});

test("what was broken off ends where it was broken off, and says so", () => {
  const plan = planUnits(recordingOf([speak("Let me explain", 4_000), listen({ barge_in: true }), listen()]));
  assert.equal(plan.turns[0].isInterrupted, true);
  assert.equal(plan.turns[0].endS, 1);
  assert.equal(plan.durationS, 3);
});

test("unit after unit, a unit lasts as long as its longer side", () => {
  const plan = planUnits(recordingOf([speak("long", 2_500), listen()], { merged_replay_timing: "logical" }));
  assert.deepEqual(
    plan.units.map(({ startS }) => startS),
    [0, 2.5],
  );
});

test("a unit that took longer than it lasts is late", () => {
  const slow = { result: { mode: /** @type {const} */ ("LISTEN"), timing: { wall_clock_ms: 1_250 } } };
  const plan = planUnits(recordingOf([listen(), slow]));
  assert.deepEqual(
    plan.units.map(({ isLate }) => isLate),
    [false, true],
  );
  assert.deepEqual(
    plan.units.map(({ startS, wallMs }) => [startS, wallMs]),
    [
      [0, 20],
      [1, 1_250],
    ],
  );
});

test("a gap inside an answer is what the listener waited for its next piece", () => {
  const plan = planUnits(recordingOf([speak("a", 400), speak("b", 1_000)]));
  // The first piece is there at 1,200 ms and sounds from 1,400 to 1,800; the second comes at 2,200.
  assert.deepEqual(
    plan.units.map(({ gapMs }) => gapMs),
    [0, 400],
  );
  assert.deepEqual(latencyFigures(plan), {
    count: 2,
    spokeCount: 2,
    p50Ms: 200,
    p99Ms: 200,
    lateCount: 0,
    gapCount: 1,
    gapMs: 400,
  });
});

test("a pause between two answers is no gap", () => {
  const plan = planUnits(recordingOf([speak("a", 400, { end_of_turn: true }), listen(), speak("b", 400)]));
  assert.ok(plan.units.every(({ gapMs }) => gapMs === 0));
});

test("several pictures of a unit share its time", () => {
  const plan = planUnits(
    recordingOf([
      { ...listen(), user_frame: "f0.jpg", extra_frames: ["f0_1.jpg"] },
      { ...listen(), user_frame: "f1.jpg" },
    ]),
  );
  assert.deepEqual(plan.pictures, [
    { atS: 0, path: "f0.jpg", unit: 0 },
    { atS: 0.5, path: "f0_1.jpg", unit: 0 },
    { atS: 1, path: "f1.jpg", unit: 1 },
  ]);
});

test("a chunk that was never answered still takes its time", () => {
  const plan = planUnits(recordingOf([listen(), {}]));
  assert.equal(plan.units[1].mode, "none");
  assert.equal(plan.durationS, 2);
});

test("an empty recording has no length", () => {
  assert.equal(planUnits(recordingOf([])).durationS, 0);
});

test("the user's words stand where their sound does, typed ones too", () => {
  const events = [
    { ts_ms: 1_250, type: "user_transcript", text: "And then?", duration_ms: 500 },
    { ts_ms: 500, type: "text_added", text: "Short, please." },
    { ts_ms: 700, type: "pause" },
  ];
  const chunks = [speak("A long answer", 1_500), listen()];
  const startsOf = (/** @type {object} */ more) => planUnits(recordingOf(chunks, { events, ...more })).userWords;
  assert.deepEqual(startsOf({}), [
    { startS: 0.5, text: "Short, please.", isTyped: true },
    { startS: 1.25, text: "And then?", isTyped: false },
  ]);
  assert.equal(startsOf({ merged_replay_timing: "logical" })[1].startS, 1.75);
});

test("the user's words stand where their sound does although chunks were dropped", () => {
  const events = [500, 2_500, 4_250].map((ts_ms) => ({ ts_ms, type: "user_transcript", text: "Yes." }));
  const chunks = [0, 3_000, 4_000].map((sent_ts_ms) => ({ ...listen(), sent_ts_ms }));
  const starts = planUnits(recordingOf(chunks, { events })).userWords.map(({ startS }) => startS);
  assert.deepEqual(starts, [0.5, 1, 2.25]);
});
