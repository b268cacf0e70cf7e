import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";

import { floatsToBase64 } from "../../static/shared/pcm.js";
import { AudioPlayer } from "../../static/duplex/lib/audio-player.js";
import { FakeContext, installWebAudio } from "./fakes/web-audio.js";

/** One second of the wire's rate. */
const SECOND = floatsToBase64(new Float32Array(24_000).fill(0.1));

beforeEach(() => {
  installWebAudio();
  mock.timers.enable({ apis: ["setInterval", "setTimeout"] });
});
afterEach(() => mock.timers.reset());

/** @param {{delayMs?: number}} [options] */
async function createScene(options) {
  const player = new AudioPlayer(options);
  await player.init();
  const context = FakeContext.made[0];
  /** @type {[string, any][]} details differ by event */
  const events = [];
  for (const type of ["gap", "flushed", "drained", "placed", "metrics"]) {
    player.addEventListener(type, (event) => {
      events.push([type, /** @type {CustomEvent} */ (event).detail]);
    });
  }
  const of = (/** @type {string} */ type) => events.filter(([name]) => name === type).map(([, detail]) => detail);
  return { player, context, of };
}

/** @param {number} actual @param {number} expected */
const assertNear = (actual, expected) => assert.ok(Math.abs(actual - expected) < 1e-3, `${actual} is not ${expected}`);

test("chunks play one after the other, the first after the delay", async () => {
  const { player, context, of } = await createScene({ delayMs: 200 });
  player.beginTurn();
  player.playChunk(SECOND);
  player.playChunk(SECOND);
  assertNear(context.started[0].when, 0.205);
  assertNear(context.started[1].when, 1.205);
  assertNear(player.aheadMs, 2_205);
  assert.equal(of("placed").length, 2);
});

test("another rate of the device is resampled without losing a sample", async () => {
  class Device extends FakeContext {
    constructor() {
      super({ sampleRate: 48_000 });
    }
  }
  Object.assign(globalThis, { AudioContext: Device });
  const { player, context } = await createScene();
  player.beginTurn();
  player.playChunk(SECOND);
  player.playChunk(SECOND);
  player.endTurn();
  const lengths = context.started.map(({ source }) => source.buffer.samples.length);
  assert.equal(
    lengths.reduce((sum, length) => sum + length),
    96_000,
  );
});

test("a late chunk is reported as a gap with its numbers", async () => {
  const { player, context, of } = await createScene();
  player.beginTurn();
  player.playChunk(SECOND);
  context.currentTime = 1.7;
  player.playChunk(SECOND);
  const [gap] = of("gap");
  assert.equal(gap.gapIndex, 1);
  assert.equal(gap.chunkIndex, 1);
  assert.equal(gap.turn, 1);
  assert.ok(gap.gapMs > 490 && gap.gapMs < 700);
  assert.ok(player.metrics.targetDelayMs > 600);
});

test("flush ends what sounds within 30 ms and is no gap", async () => {
  const { player, context, of } = await createScene();
  player.beginTurn();
  player.playChunk(SECOND);
  player.playChunk(SECOND);
  context.currentTime = 0.5;
  assertNear(player.flush(), 1_705);
  for (const { stopAt } of context.started) assertNear(stopAt ?? Infinity, 0.53);
  assert.equal(player.isPlaying, false);
  assert.equal(of("flushed").length, 1);
  assert.equal(player.metrics.gapCount, 0);
});

test("nothing of a flushed turn is heard afterwards, the next turn is", async () => {
  const { player, context } = await createScene();
  player.beginTurn(7);
  player.playChunk(SECOND);
  player.flush();
  assert.equal(player.playChunk(SECOND), false);
  player.beginTurn(7);
  assert.equal(player.playChunk(SECOND), false);
  assert.equal(context.started.length, 1);
  player.beginTurn(8);
  assert.equal(player.playChunk(SECOND), true);
  assert.equal(context.started.length, 2);
});

test("a held answer goes on at the sample where it stopped", async () => {
  const { player, context } = await createScene();
  player.beginTurn();
  player.playChunk(SECOND);
  player.playChunk(SECOND);
  context.currentTime = 0.705;
  player.hold();
  player.playChunk(SECOND);
  assert.equal(context.started.length, 2);
  context.currentTime = 5;
  player.release();
  const again = context.started.slice(2);
  assert.deepEqual(
    again.map(({ source }) => source.buffer.samples.length),
    [24_000, 24_000, 24_000],
  );
  assertNear(again[0].offset, 0.5);
  assertNear(again[0].when, 5.005);
  assertNear(again[1].when, 5.505);
  assert.equal(player.metrics.gapCount, 0);
});

test("played chunks leave the memory and the end is told once", async () => {
  const { player, context, of } = await createScene();
  player.beginTurn();
  player.playChunk(SECOND);
  player.endTurn();
  context.currentTime = 0.5;
  mock.timers.tick(200);
  assert.equal(of("drained").length, 0);
  context.currentTime = 3;
  context.started[0].source.onended?.();
  mock.timers.tick(600);
  assert.equal(of("drained").length, 1);
  assert.equal(of("metrics").at(-1).aheadMs, 0);
  player.hold();
  player.release();
  assert.equal(context.started.length, 1);
});

test("a suspended context is resumed", async () => {
  const { context } = await createScene();
  await context.suspend();
  assert.equal(context.state, "running");
});

test("what was queued before the browser let the page play is dropped, and the rest of the turn is played", async () => {
  class Blocked extends FakeContext {
    /** @override */ state = "suspended";
    isAllowed = false;
    /** @override */ resume() {
      return this.isAllowed ? super.resume() : /** @type {Promise<void>} */ (new Promise(() => {}));
    }
  }
  Object.assign(globalThis, { AudioContext: Blocked });
  const { player, context } = await createScene();
  player.resume();
  assert.equal(player.isRunning, false);
  player.beginTurn(1);
  for (let second = 0; second < 10; second += 1) player.playChunk(SECOND);
  player.addEventListener("resumed", () => player.skipToNow(), { once: true });
  /** @type {Blocked} */ (context).isAllowed = true;
  player.resume();
  assert.equal(player.isRunning, true);
  for (const { when, stopAt } of context.started) assert.ok((stopAt ?? Infinity) < when, "never heard");
  context.currentTime = 1;
  assert.equal(player.playChunk(SECOND), true);
  assertNear(context.started[10].when, 1.205);
});

test("a turn that was flushed stays silent when the rest is skipped", async () => {
  const { player } = await createScene();
  player.beginTurn(7);
  player.playChunk(SECOND);
  player.flush();
  player.skipToNow();
  assert.equal(player.playChunk(SECOND), false);
});

test("stop closes the context, and nothing is played afterwards", async () => {
  const { player, context } = await createScene();
  await player.stop();
  assert.equal(context.state, "closed");
  assert.equal(player.playChunk(SECOND), false);
});

test("where the loudspeaker cannot be chosen it says so", async () => {
  const { player } = await createScene();
  assert.equal(await player.setSinkId("x"), false);
});
