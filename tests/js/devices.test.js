/** The device modules as far as they go without a device: errors, lists, plans, formats. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { deviceCode } from "../../static/duplex/lib/call-state.js";
import { openMicrophone } from "../../static/duplex/lib/capture.js";
import { Camera, fitSize } from "../../static/duplex/lib/camera.js";
import { automaticGains, locateChirp, makeChirp } from "../../static/duplex/lib/measure.js";
import { planRun } from "../../static/duplex/lib/capture-format.js";
import { checkDuration } from "../../static/duplex/lib/file-source.js";
import { mayLackSound, pickFormat, supportedFormats } from "../../static/duplex/lib/session-recorder.js";
import { SileroDetector } from "../../static/duplex/lib/barge-in.js";
import { keepAwake } from "../../static/shared/page-visibility.js";
import { settle } from "./fakes/socket.js";
import { makeNoise } from "./speech-scene.js";

/** @import { OnnxRuntime } from "../../static/duplex/lib/barge-in.js" */

/** @param {string} name */
const named = (name) => new DOMException("", name);

test("each refusal of the browser has its own code", () => {
  for (const missing of ["no_microphone", "not_found"]) {
    const codeOf = (/** @type {unknown} */ error) => deviceCode(error, missing);
    assert.equal(codeOf(named("NotAllowedError")), "permission_denied");
    assert.equal(codeOf(named("SecurityError")), "permission_denied");
    assert.equal(codeOf(named("NotFoundError")), missing);
    assert.equal(codeOf(named("OverconstrainedError")), missing);
    assert.equal(codeOf(named("NotReadableError")), "busy");
    assert.equal(codeOf(named("AbortError")), "busy");
    assert.equal(codeOf(new TypeError("odd")), "unsupported");
  }
});

test("without media devices, or on an insecure page, opening a microphone says so", async () => {
  await assert.rejects(openMicrophone(), { code: "unsupported" });
  const scope = /** @type {{isSecureContext?: boolean}} */ (globalThis);
  scope.isSecureContext = false;
  try {
    await assert.rejects(openMicrophone(), { code: "insecure_context" });
  } finally {
    delete scope.isSecureContext;
  }
});

test("a camera whose picture cannot be shown is let go", async () => {
  let stopped = 0;
  const track = { addEventListener: () => {}, stop: () => (stopped += 1) };
  const stream = { getTracks: () => [track], getVideoTracks: () => [track] };
  const video = { srcObject: null, play: () => Promise.reject(named("AbortError")) };
  const found = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  Object.defineProperty(globalThis, "navigator", {
    configurable: true,
    value: { mediaDevices: { getUserMedia: async () => stream } },
  });
  try {
    const camera = new Camera({ video: /** @type {HTMLVideoElement} */ (/** @type {unknown} */ (video)) });
    await assert.rejects(camera.switchTo({}), { name: "AbortError" });
  } finally {
    if (found) Object.defineProperty(globalThis, "navigator", found);
  }
  assert.deepEqual([stopped, video.srcObject], [1, null]);
});

test("a camera that is switched or closed while another one opens holds the last one only", async () => {
  const makeStream = () => {
    const track = { isStopped: false, addEventListener: () => {}, stop: () => void (track.isStopped = true) };
    return { track, getTracks: () => [track], getVideoTracks: () => [track] };
  };
  /** @type {((stream: ReturnType<typeof makeStream>) => void)[]} */ const answers = [];
  const getUserMedia = () => new Promise((resolve) => answers.push(resolve));
  const found = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  Object.defineProperty(globalThis, "navigator", { configurable: true, value: { mediaDevices: { getUserMedia } } });
  const video = { srcObject: null, readyState: 4, play: async () => {} };
  const streams = [makeStream(), makeStream(), makeStream()];
  try {
    const camera = new Camera({ video: /** @type {HTMLVideoElement} */ (/** @type {unknown} */ (video)) });
    const switches = [camera.flip(), camera.flip()];
    answers.forEach((answer, index) => answer(streams[index]));
    await Promise.all(switches);
    assert.deepEqual([streams[0].track.isStopped, streams[1].track.isStopped, camera.isOpen], [true, false, true]);
    const late = camera.flip();
    camera.close();
    answers[2](streams[2]);
    await late;
    assert.deepEqual([streams[1].track.isStopped, streams[2].track.isStopped, camera.isOpen], [true, true, false]);
  } finally {
    if (found) Object.defineProperty(globalThis, "navigator", found);
  }
});

test("a frame keeps its proportions and its longest side is bounded", () => {
  assert.deepEqual(fitSize(1_920, 1_080, 1_280), { widthPx: 1_280, heightPx: 720 });
  assert.deepEqual(fitSize(1_080, 1_920, 1_280), { widthPx: 720, heightPx: 1_280 });
  assert.deepEqual(fitSize(640, 480, 1_280), { widthPx: 640, heightPx: 480 });
});

test("the echo test finds a faint late chirp in noise, and none in noise alone", () => {
  const rateHz = 16_000;
  const chirp = makeChirp(rateHz);
  const noise = makeNoise(4);
  const recorded = Float32Array.from({ length: 12_000 }, () => 0.002 * noise());
  assert.equal(locateChirp(recorded, chirp, rateHz).isHeard, false);
  chirp.forEach((sample, i) => {
    recorded[2_000 + i] += sample * 0.01;
  });
  const found = locateChirp(recorded, chirp, rateHz);
  assert.equal(found.isHeard, true);
  assert.ok(Math.abs(found.delayMs - 125) < 0.2);
  assert.ok(Math.abs(found.levelDb + 40) < 1);
  assert.equal(locateChirp(new Float32Array(12_000), chirp, rateHz).isHeard, false);
});

/**
 * A chirp coming back half as loud, with glitches of a busy browser at some places.
 * @param {number[]} places
 * @param {(sound: number[], at: number) => number[]} glitch
 */
function brokenEcho(places, glitch) {
  const recorded = new Float32Array(16_000);
  const echo = Array.from(makeChirp(16_000), (sample) => sample / 2);
  recorded.set(places.reduceRight(glitch, echo), 2_000);
  return recorded;
}

test("an echo is as loud as it is where a busy browser leaves out blocks, puts some in or silences them", () => {
  const silence = Array.from({ length: 160 }, () => 0); // 10 ms
  /** @type {((sound: number[], at: number) => number[])[]} */
  const glitches = [
    (sound, at) => sound.toSpliced(at, silence.length),
    (sound, at) => sound.toSpliced(at, 0, ...silence),
    (sound, at) => sound.toSpliced(at, silence.length, ...silence),
  ];
  for (const places of [[], [2_000], [700, 2_900], [400, 1_700, 3_300]]) {
    for (const glitch of glitches) {
      const found = locateChirp(brokenEcho(places, glitch), makeChirp(16_000), 16_000);
      assert.equal(found.isHeard, true);
      assert.ok(Math.abs(found.levelDb + 6.02) < 0.5, `${found.levelDb} dB, broken at ${places}`);
    }
  }
});

test("noise louder than an echo does not make it louder", () => {
  const chirp = makeChirp(16_000);
  for (const gain of [0.05, 0.1, 0.2, 0.4]) {
    const noise = makeNoise(4);
    const recorded = Float32Array.from({ length: 16_000 }, () => 0.2 * noise());
    chirp.forEach((sample, i) => {
      recorded[2_000 + i] += sample * gain;
    });
    const found = locateChirp(recorded, chirp, 16_000);
    assert.equal(found.isHeard, true);
    assert.ok(Math.abs(found.levelDb - 20 * Math.log10(gain)) < 1, `${found.levelDb} dB for ${gain}`);
  }
});

test("a file run is planned in whole chunks", () => {
  const plan = planRun({ durationS: 2.7, paddingBeforeS: 1, paddingAfterS: 2, chunkS: 1 });
  assert.equal(plan.chunkCount, 6);
  assert.equal(plan.totalS, 6);
  assert.equal(plan.fileStartS, 1);
  assert.equal(planRun({ durationS: 3, paddingBeforeS: 0, paddingAfterS: 0, chunkS: 1 }).chunkCount, 3);
});

test("files that are empty or too long are refused", () => {
  assert.throws(() => checkDuration(0, false), { code: "empty" });
  assert.throws(() => checkDuration(NaN, false), { code: "empty" });
  assert.throws(() => checkDuration(301, false), { code: "too_long" });
  assert.throws(() => checkDuration(121, true), { code: "too_long" });
  checkDuration(300, false);
  checkDuration(120, true);
});

test("automatic gains: a file alone may be louder than one beside a voice", () => {
  const measured = { fileLufs: -20, microphoneLufs: -30 };
  assert.deepEqual(automaticGains("both", measured), { fileDb: -13, microphoneDb: 7 });
  assert.equal(automaticGains("file", measured).fileDb, -8);
  assert.equal(automaticGains("both", { fileLufs: -Infinity, microphoneLufs: -Infinity }).fileDb, 0);
});

test("the format follows the wish, then the order, then what is there", () => {
  const all = () => true;
  assert.equal(pickFormat(all)?.id, "webm-vp9");
  assert.equal(pickFormat(all, "mp4")?.id, "mp4");
  const safari = (/** @type {string} */ mimeType) => mimeType.includes("mp4");
  assert.equal(pickFormat(safari, "webm-vp9")?.id, "mp4");
  assert.equal(
    pickFormat(() => false),
    null,
  );
  assert.deepEqual(
    supportedFormats(safari).map(({ id }) => id),
    ["mp4", "audio-mp4"],
  );
  const mute = (/** @type {string} */ mimeType) => mimeType === "video/mp4";
  const mp4 = pickFormat(mute);
  assert.ok(mp4 && mayLackSound(mp4, mute) && !mayLackSound(mp4, all));
});

test("Silero gets 64 samples of context and its own state back, window by window", async () => {
  /** @type {{input: Float32Array, state: unknown}[]} */
  const seen = [];
  class Tensor {
    /** @param {string} type @param {Float32Array} data @param {number[]} dims */
    constructor(type, data, dims) {
      Object.assign(this, { type, data, dims });
    }
    /** @type {unknown} */
    data = undefined;
  }
  const session = {
    /** @param {Record<string, any>} feeds a tensor of ONNX is of any kind */
    async run(feeds) {
      seen.push({ input: feeds.input.data, state: feeds.state });
      return { output: { data: Float32Array.of(0.25 * seen.length) }, stateN: { data: seen.length } };
    },
  };
  const ort = /** @type {OnnxRuntime} */ (/** @type {unknown} */ ({ Tensor, InferenceSession: {} }));
  const detector = new SileroDetector(ort, session);
  assert.equal(await detector.judge(new Float32Array(512).fill(1)), 0.25);
  assert.equal(await detector.judge(new Float32Array(512).fill(2)), 0.5);
  assert.equal(seen[0].input.length, 576);
  assert.deepEqual([...seen[1].input.subarray(62, 66)], [1, 1, 2, 2]);
  assert.deepEqual(seen[1].state, { data: 1 });
  for (let i = 0; i < 9; i += 1) detector.push(new Float32Array(512));
  for (let turn = 0; turn < 4; turn += 1) await settle();
  assert.equal(seen.length, 7, "one is evaluated and four wait; the rest is skipped");
  await detector.close();
  assert.equal(detector.probability, 1);
});

test("the screen lock is taken again when the tab returns, and let go once", async () => {
  let held = 0;
  const navigator = /** @type {Navigator} */ (
    /** @type {unknown} */ ({
      wakeLock: {
        request: async () => {
          held += 1;
          return { release: async () => void (held -= 1) };
        },
      },
    })
  );
  const page = Object.assign(new EventTarget(), { visibilityState: "hidden" });
  const lock = keepAwake(navigator, page);
  await Promise.resolve();
  assert.equal(held, 0);
  page.visibilityState = "visible";
  page.dispatchEvent(new Event("visibilitychange"));
  await Promise.resolve();
  await Promise.resolve();
  assert.equal(held, 1);
  await lock.release();
  assert.equal(held, 0);
});
