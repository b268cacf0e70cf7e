import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { openMicrophone } from "../../static/duplex/lib/capture.js";
import { FakeContext, FakeWorkletNode, installWebAudio } from "./fakes/web-audio.js";

class FakeTrack extends EventTarget {
  label = "Desk microphone";
  isStopped = false;
  stop() {
    this.isStopped = true;
  }
  getSettings() {
    return { deviceId: "desk" };
  }
}

/** @type {FakeTrack} */
let track;
/** @type {any} what was asked of the browser */
let asked;
/** @type {Error | null} */
let refusal;

beforeEach(() => {
  installWebAudio();
  track = new FakeTrack();
  refusal = null;
  const stream = { getAudioTracks: () => [track], getTracks: () => [track] };
  const getUserMedia = async (/** @type {object} */ constraints) => {
    asked = constraints;
    if (refusal) throw refusal;
    return stream;
  };
  Object.defineProperty(globalThis, "navigator", { value: { mediaDevices: { getUserMedia } }, configurable: true });
});

/** @param {EventTarget} target @param {string} type */
function collect(target, type) {
  /** @type {any[]} details differ by event */
  const details = [];
  target.addEventListener(type, (event) => details.push(/** @type {CustomEvent} */ (event).detail));
  return details;
}

test("echo cancellation is on by default, and headphones turn it off", async () => {
  await openMicrophone();
  assert.equal(asked.audio.echoCancellation, true);
  assert.equal(asked.audio.deviceId, undefined);
  await openMicrophone({ echoCancellation: false, deviceId: "desk" });
  assert.equal(asked.audio.echoCancellation, false);
  assert.deepEqual(asked.audio.deviceId, { exact: "desk" });
});

test("a refusal carries its code and what the browser said", async () => {
  refusal = new DOMException("no", "NotAllowedError");
  await assert.rejects(openMicrophone(), { code: "permission_denied", cause: refusal });
});

test("a chosen device that is gone gives way to the default one, and a refusal does not", async () => {
  const { mediaDevices } = navigator;
  const granted = mediaDevices.getUserMedia;
  /** @type {(object | undefined)[]} */ const devices = [];
  for (const name of ["OverconstrainedError", "NotAllowedError"]) {
    mediaDevices.getUserMedia = async (constraints) => {
      const given = /** @type {any} */ (constraints);
      const { deviceId } = given.audio ?? given.video;
      devices.push(deviceId);
      if (deviceId) throw new DOMException("gone", name);
      return granted(constraints);
    };
    if (name === "NotAllowedError") await assert.rejects(openMicrophone({ deviceId: "old" }), { code: "permission_denied" });
    else await openMicrophone({ deviceId: "old" });
  }
  assert.deepEqual(devices, [{ exact: "old" }, undefined, { exact: "old" }]);
});

test("chunks and levels come as events, the rest before stop resolves", async () => {
  const microphone = await openMicrophone();
  const [worklet] = FakeWorkletNode.made;
  const chunks = collect(microphone, "chunk");
  microphone.start();
  worklet.send({ type: "chunk", audio: new Float32Array(4), endTimeS: 0 });
  await microphone.stop();
  assert.deepEqual(
    worklet.commands.map(({ type }) => type),
    ["start", "stop"],
  );
  assert.equal(chunks.length, 1);
  assert.equal(microphone.label, "Desk microphone");
});

test("two seconds of exact zeros are reported once, and so is the first sound after", async () => {
  const microphone = await openMicrophone();
  const [worklet] = FakeWorkletNode.made;
  const silent = collect(microphone, "silent");
  const audible = collect(microphone, "audible");
  const send = (/** @type {boolean} */ isSilent, /** @type {number} */ count) => {
    for (let i = 0; i < count; i += 1) worklet.send({ type: "level", rms: 0, peak: 0, isSilent });
  };
  send(true, 39);
  assert.equal(silent.length, 0);
  send(true, 60);
  assert.equal(silent.length, 1);
  send(false, 2);
  assert.equal(audible.length, 1);
});

test("an unplugged device is an event with its code", async () => {
  const microphone = await openMicrophone();
  const ended = collect(microphone, "ended");
  track.dispatchEvent(new Event("ended"));
  assert.equal(ended[0].code, "unplugged");
});

test("a browser that refuses 16 kHz gets its own rate", async () => {
  class Firefox extends FakeContext {
    /** @param {{sampleRate?: number}} options */
    constructor(options) {
      super({ sampleRate: 48_000, ...options });
    }
    /** @override */
    createMediaStreamSource() {
      if (this.sampleRate !== 48_000) throw new DOMException("rates differ", "NotSupportedError");
      return super.createMediaStreamSource();
    }
  }
  Object.assign(globalThis, { AudioContext: Firefox });
  const microphone = await openMicrophone();
  assert.equal(microphone.context.sampleRate, 48_000);
  assert.equal(FakeContext.made[0].state, "closed");
});

test("a suspended context is told and resumed", async () => {
  const microphone = await openMicrophone();
  const suspended = collect(microphone, "suspended");
  const resumed = collect(microphone, "resumed");
  await FakeContext.made[0].suspend();
  assert.equal(suspended.length, 1);
  assert.equal(resumed.length, 1);
  assert.equal(microphone.context.state, "running");
});

test("close lets the device and the context go, once", async () => {
  const microphone = await openMicrophone();
  await microphone.close();
  await microphone.close();
  assert.equal(track.isStopped, true);
  assert.equal(FakeContext.made[0].state, "closed");
  await microphone.stop();
});

test("a microphone that cannot be captured lets the device and the context go", async () => {
  class Offline extends FakeContext {
    /** @override */
    audioWorklet = { addModule: () => Promise.reject(new DOMException("not loaded", "AbortError")) };
  }
  Object.assign(globalThis, { AudioContext: Offline });
  await assert.rejects(openMicrophone(), { code: "unsupported" });
  assert.equal(track.isStopped, true);
  assert.deepEqual(
    FakeContext.made.map(({ state }) => state),
    ["closed"],
  );
});
