import assert from "node:assert/strict";
import { test } from "node:test";

import { BargeIn } from "../../static/duplex/lib/barge-in.js";

class FakePlayer {
  isPlaying = false;
  /** @type {string[]} */
  calls = [];
  outputRms() {
    return 0;
  }
  /** @param {number} gainDb */
  duck(gainDb) {
    this.calls.push(`duck ${gainDb}`);
  }
  hold() {
    this.calls.push("hold");
  }
  release() {
    this.calls.push("release");
  }
  flush() {
    this.calls.push("flush");
    this.isPlaying = false;
    return 0;
  }
}

class FakeSource extends EventTarget {
  hasFeatures = false;
  hasWindows = false;
  /** @param {boolean} isOn */
  setFeatures(isOn) {
    this.hasFeatures = isOn;
  }
  /** @param {boolean} isOn */
  setWindows(isOn) {
    this.hasWindows = isOn;
  }
  /** @param {object} frame @param {number} count */
  hear(frame, count) {
    for (let i = 0; i < count; i += 1) this.dispatchEvent(new CustomEvent("feature", { detail: frame }));
  }
}

const QUIET = { rms: 1e-4, upperRms: 1e-5 };
const SPEECH = { rms: 0.1, upperRms: 0.05 };
const HUM = { rms: 0.1, upperRms: 0.005 };

function createScene() {
  const player = new FakePlayer();
  const source = new FakeSource();
  const bargeIn = new BargeIn(player);
  /** @type {string[]} */
  const states = [];
  let interrupts = 0;
  bargeIn.addEventListener("state", (event) => {
    states.push(/** @type {CustomEvent} */ (event).detail.state);
  });
  bargeIn.addEventListener("interrupt", () => {
    interrupts += 1;
  });
  bargeIn.attach(source);
  source.hear(QUIET, 50);
  player.isPlaying = true;
  source.hear(QUIET, 20);
  return { player, source, bargeIn, states, interruptCount: () => interrupts };
}

test("speech that goes on ducks, holds, flushes and interrupts once", () => {
  const { player, source, states, interruptCount } = createScene();
  source.hear(SPEECH, 120);
  assert.deepEqual(states, ["speaking", "ducked", "held", "interrupted"]);
  assert.deepEqual(player.calls, ["duck -9", "hold", "flush", "duck 0"]);
  assert.equal(interruptCount(), 1);
});

test("after an interruption the next answer is spoken again", () => {
  const { player, source, states } = createScene();
  source.hear(SPEECH, 80);
  source.hear(QUIET, 60);
  player.isPlaying = true;
  source.hear(QUIET, 1);
  assert.deepEqual(states.slice(-2), ["interrupted", "speaking"]);
});

test("a short open sound pauses the answer, which goes on complete", () => {
  const { player, source, states, interruptCount } = createScene();
  source.hear(SPEECH, 25);
  source.hear(QUIET, 40);
  assert.deepEqual(states, ["speaking", "ducked", "held", "speaking"]);
  assert.deepEqual(player.calls, ["duck -9", "hold", "duck 0", "release"]);
  assert.equal(interruptCount(), 0);
});

test("a hum only ducks", () => {
  const { player, source } = createScene();
  source.hear(HUM, 30);
  source.hear(QUIET, 20);
  assert.deepEqual(player.calls, ["duck -9", "duck 0", "release"]);
});

test("an answer that ends while ducked leaves the volume as it was", () => {
  const { player, source, states } = createScene();
  source.hear(HUM, 10);
  player.isPlaying = false;
  source.hear(HUM, 1);
  assert.deepEqual(player.calls, ["duck -9", "duck 0", "release"]);
  assert.equal(states.at(-1), "listening");
});

test("turned off it does nothing, and turning it off lets a held answer go on", () => {
  const off = createScene();
  off.bargeIn.setEnabled(false);
  off.player.calls.length = 0;
  off.source.hear(SPEECH, 100);
  assert.deepEqual(off.player.calls, []);
  const held = createScene();
  held.source.hear(SPEECH, 20);
  held.bargeIn.setEnabled(false);
  assert.deepEqual(held.player.calls.slice(-2), ["duck 0", "release"]);
});

test("a decision of the server flushes without an interrupt event", () => {
  const { player, bargeIn, states, interruptCount } = createScene();
  bargeIn.flush();
  assert.equal(player.calls[0], "flush");
  assert.equal(states.at(-1), "interrupted");
  assert.equal(interruptCount(), 0);
});

test("what a voice detector does not take for a voice only ducks", () => {
  const { source, bargeIn, player } = createScene();
  /** @type {number[]} */
  const windows = [];
  const detector = { probability: 0, push: (/** @type {Float32Array} */ w) => windows.push(w.length) };
  bargeIn.setDetector(detector);
  assert.equal(source.hasWindows, true);
  source.dispatchEvent(new CustomEvent("window", { detail: new Float32Array(512) }));
  assert.deepEqual(windows, [512]);
  source.hear(SPEECH, 60);
  source.hear(QUIET, 20);
  assert.equal(player.calls.join(", "), "duck -9, duck 0, release");
  detector.probability = 0.9;
  source.hear(SPEECH, 60);
  assert.ok(player.calls.includes("flush"));
});

test("another source replaces the first, and close lets go", () => {
  const { source, bargeIn, player } = createScene();
  const next = new FakeSource();
  bargeIn.attach(next);
  assert.equal(source.hasFeatures, false);
  assert.equal(next.hasFeatures, true);
  source.hear(SPEECH, 100);
  assert.deepEqual(player.calls, []);
  bargeIn.close();
  assert.equal(next.hasFeatures, false);
});
