import assert from "node:assert/strict";
import { test } from "node:test";

import { SpeechGate } from "../../static/duplex/lib/speech-gate.js";
import {
  cutOnsets,
  makeNoise,
  readSpeech,
  RATE_HZ,
  runScene,
  synthesiseBackchannel,
  twentyBackchannels,
} from "./speech-scene.js";

/** @import { Outcome, Scene } from "./speech-scene.js" */

const answer = readSpeech("ref_voice.wav");
const onsets = ["speech_8s.wav", "question_1.wav", "ref_voice.wav", "../../../../examples/hello.wav"].flatMap((name) =>
  cutOnsets(readSpeech(name)),
);

/** @param {number[]} values @param {number} part */
function percentile(values, part) {
  return values.toSorted((a, b) => a - b)[Math.ceil(part * values.length) - 1];
}

/** Thirty onsets, each at another moment of the answer. @param {Omit<Scene, "user" | "answer">} room */
function runThirty(room) {
  return Array.from({ length: 30 }, (_, i) =>
    runScene({ ...room, user: onsets[i % onsets.length], answer, seed: i + 1, onsetS: 2 + ((i * 0.17) % 1) }),
  );
}

/** @param {Outcome} outcome @param {string} action */
const timeOf = (outcome, action) => outcome.actions.find((taken) => taken.action === action)?.atMs;

// Milliseconds from the onset until the gate says hold: p95 of 30, as measured, rounded up to 10.
// The player adds its 30 ms fade and the browser's capture its blocks; 200 ms is the aim of all. A
// whisper (-40 dBFS) misses it: its soft first syllables lie below what counts as sound at all.
for (const [userLevelDb, noiseDb, echoDb, limitMs] of [
  [-20, -70, -60, 70],
  [-30, -70, -60, 110],
  [-40, -70, -60, 310],
  [-30, -50, -60, 150],
  [-20, -70, -20, 120],
  [-25, -50, -20, 160],
]) {
  const room = `user ${userLevelDb} dBFS, room ${noiseDb} dBFS, echo ${echoDb} dB`;
  test(`speech holds the answer: ${room}`, () => {
    const outcomes = runThirty({ userLevelDb, noiseDb, echoDb });
    const holds = outcomes.map((outcome) => timeOf(outcome, "hold") ?? Infinity);
    assert.ok(Math.min(...holds) > 0, "held before the user spoke");
    const p95Ms = percentile(holds, 0.95);
    assert.ok(p95Ms <= limitMs, `p95 ${p95Ms} ms`);
  });
}

test("speech that goes on is confirmed, and nothing is heard between hold and flush", () => {
  for (const outcome of runThirty({ userLevelDb: -20, noiseDb: -60, echoDb: -40 })) {
    const words = outcome.actions.map(({ action }) => action).filter((action) => action !== "duck");
    assert.deepEqual(words.slice(0, 2), ["hold", "confirm"]);
    assert.ok((timeOf(outcome, "confirm") ?? Infinity) <= 700);
  }
});

for (const [userLevelDb, noiseDb, echoDb] of [
  [-20, -70, -60],
  [-30, -50, -60],
  [-20, -60, -20],
  [-30, -70, -20],
]) {
  test(`twenty mm-hm of 150 to 350 ms never stop the answer: user ${userLevelDb}, echo ${echoDb}`, () => {
    for (const [i, user] of twentyBackchannels().entries()) {
      const lengthMs = (user.length / RATE_HZ) * 1_000;
      assert.ok(lengthMs >= 150 && lengthMs <= 360);
      const outcome = runScene({ user, answer, userLevelDb, noiseDb, echoDb, seed: i + 1 });
      for (const { action } of outcome.actions) assert.ok(["duck", "release"].includes(action), action);
      assert.equal(outcome.actions.at(-1)?.action, "release");
      assert.equal(outcome.mutedMs, 0);
    }
  });
}

test("a short open backchannel only pauses the answer", () => {
  for (const [i, user] of twentyBackchannels(true).entries()) {
    const outcome = runScene({ user, answer, userLevelDb: -20, noiseDb: -60, echoDb: -40, seed: i });
    assert.equal(outcome.actions.at(-1)?.action, "release");
    assert.ok(outcome.mutedMs <= 700, `${outcome.mutedMs} ms`);
  }
});

test("a hum that does not end is speech in the end", () => {
  const user = synthesiseBackchannel({ pitchHz: 120, syllableMs: 600, breathMs: 20 });
  const outcome = runScene({ user, answer, userLevelDb: -20, noiseDb: -60, echoDb: -40 });
  assert.ok(outcome.actions.some(({ action }) => action === "confirm"));
});

test("its own echo does not interrupt it, at any coupling", () => {
  for (const echoDb of [-40, -20, -12, -6, 0]) {
    const gate = new SpeechGate();
    const user = new Float32Array(16 * RATE_HZ);
    user[0] = 1e-9;
    const outcome = runScene({ user, answer, userLevelDb: -90, noiseDb: -60, echoDb, onsetS: 0 }, gate);
    const holds = outcome.actions.filter(({ action }) => action === "hold").length;
    assert.ok(!outcome.actions.some(({ action }) => action === "confirm"), `${echoDb} dB confirmed`);
    assert.ok(holds <= (echoDb <= -20 ? 0 : 4), `${echoDb} dB: ${holds} holds`);
  }
});

test("clicks and steady noise leave the answer alone", () => {
  const noise = makeNoise(7);
  const clicks = Float32Array.from({ length: 4 * RATE_HZ }, (_, i) =>
    i % 6_400 < 400 ? noise() * Math.exp(-(i % 6_400) / 80) : 0,
  );
  const knocking = runScene({ user: clicks, answer, userLevelDb: -35, noiseDb: -60, echoDb: -40 });
  assert.ok(!knocking.actions.some(({ action }) => action === "hold"));
  const fan = runScene({ user: clicks.fill(0, 0, 1), answer, userLevelDb: -90, noiseDb: -40, echoDb: -40 });
  assert.deepEqual(fan.actions, []);
});

test("without an answer playing the gate only listens", () => {
  const gate = new SpeechGate();
  const loud = { rms: 0.2, upperRms: 0.1 };
  for (let i = 0; i < 100; i += 1) {
    assert.equal(gate.push(loud, { isPlaying: false, outputRms: 0 }), "none");
  }
  assert.equal(gate.state, "idle");
});

test("speech the answer began over must last its full length anew", () => {
  const gate = new SpeechGate();
  const quiet = { rms: 1e-4, upperRms: 1e-5 };
  const loud = { rms: 0.2, upperRms: 0.1 };
  for (let i = 0; i < 50; i += 1) gate.push(quiet, { isPlaying: false, outputRms: 0 });
  for (let i = 0; i < 100; i += 1) gate.push(loud, { isPlaying: false, outputRms: 0 });
  const actions = Array.from({ length: 60 }, () => gate.push(loud, { isPlaying: true, outputRms: 0 }));
  assert.equal(actions.indexOf("confirm"), 49);
});
