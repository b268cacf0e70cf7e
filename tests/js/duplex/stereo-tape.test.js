import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { SessionRecorder, StereoTape } from "../../../static/duplex/lib/session-recorder.js";
import { Emitter } from "../../../static/shared/async.js";
import { settle } from "../fakes/socket.js";

/** @import { Capture } from "../../../static/duplex/lib/capture.js" */
/** @import { DuplexCall } from "../../../static/duplex/lib/call-kinds.js" */

const HEADER_BYTES = 44;
const RATE_HZ = 16_000;

/** @param {StereoTape} tape @returns {Promise<{at: (frame: number, channel: 0 | 1) => number, frames: number}>} */
async function read(tape) {
  const file = new DataView(await tape.toWav().arrayBuffer());
  return {
    at: (frame, channel) => file.getInt16(HEADER_BYTES + 4 * frame + 2 * channel, true),
    frames: (file.byteLength - HEADER_BYTES) / 4,
  };
}

test("user and answer stand side by side, and what stood still is filled up", async () => {
  const tape = new StereoTape();
  tape.append("left", Float32Array.of(1, 1), 2);
  tape.append("right", Float32Array.of(-1), 10_001);
  const file = await read(tape);
  assert.equal(file.frames, 10_001);
  assert.equal(file.at(0, 0), 32_767);
  assert.equal(file.at(0, 1), 0);
  assert.equal(file.at(10_000, 1), -32_767);
});

test("small jitter of the clock does not tear a channel", () => {
  const tape = new StereoTape();
  for (let i = 1; i <= 10; i += 1) tape.append("left", new Float32Array(1_600), i * 1_600 + (i % 3) * 900);
  assert.equal(tape.lengthSamples, RATE_HZ);
});

test("a long call is one whole file and holds little in memory", async (context) => {
  const { Blob } = globalThis;
  let sealedSamples = 0; // in blobs
  globalThis.Blob = class extends Blob {
    /** @param {ConstructorParameters<typeof Blob>} given */
    constructor(...given) {
      super(...given);
      sealedSamples += this.size / 4;
    }
  };
  context.after(() => (globalThis.Blob = Blob));
  const tape = new StereoTape();
  let mostHeld = 0;
  const secondsLong = 47;
  for (let second = 0; second < secondsLong; second += 1) {
    const end = (second + 1) * RATE_HZ;
    tape.append("left", new Float32Array(RATE_HZ).fill(second / 100), end);
    // The other side comes in smaller pieces.
    for (let part = 1; part <= 4; part += 1) {
      tape.append("right", new Float32Array(4_000).fill(-second / 100), end - RATE_HZ + part * 4_000);
    }
    mostHeld = Math.max(mostHeld, tape.lengthSamples - sealedSamples);
  }
  assert.ok(mostHeld <= 11 * RATE_HZ, String(mostHeld));
  const file = await read(tape);
  assert.equal(file.frames, secondsLong * RATE_HZ);
  for (const second of [0, 9, 10, 11, 30, 46]) {
    const middle = second * RATE_HZ + 8_000;
    assert.ok(Math.abs(file.at(middle, 0) / 32_767 - second / 100) < 1e-4, `left at ${second} s`);
    assert.ok(Math.abs(file.at(middle, 1) / 32_767 + second / 100) < 1e-4, `right at ${second} s`);
  }
});

test("the file may be asked for more than once", async () => {
  const tape = new StereoTape();
  tape.append("left", Float32Array.of(1, 1), 2);
  assert.deepEqual((await read(tape)).frames, (await read(tape)).frames);
});

test("a recording that has reached its bound says so once", async () => {
  const LIMIT_MS = 1_800_000;
  let nowMs = 0;
  mock.method(performance, "now", () => nowMs);
  const call = new Emitter();
  let isStopped = false;
  const answer = Object.assign(new Emitter(), {
    listenTo: async () => {},
    start() {},
    async stop() {
      if (isStopped) return;
      isStopped = true;
      await null;
      answer.emit("chunk", { audio: new Float32Array(100) }); // a capture delivers the rest
    },
    close() {},
  });
  const recorder = new SessionRecorder(/** @type {Capture} */ (/** @type {unknown} */ (answer)));
  let fullCount = 0;
  recorder.addEventListener("full", () => (fullCount += 1));
  await recorder.start(/** @type {DuplexCall} */ (/** @type {unknown} */ (call)), /** @type {AudioNode} */ ({}));
  nowMs = LIMIT_MS;
  call.emit("chunk", { audio: new Float32Array(RATE_HZ) });
  nowMs = 1_000;
  call.emit("chunk", { audio: new Float32Array(RATE_HZ) });
  await settle();
  assert.equal(fullCount, 1);
  mock.restoreAll();
});
