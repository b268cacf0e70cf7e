import assert from "node:assert/strict";
import { test } from "node:test";

import { resample } from "./fakes/resample.js";

/** @typedef {{type: string, audio: Float32Array, rms: number, isSilent: boolean}} Message */
/** @typedef {{process: (inputs: Float32Array[][]) => boolean, port: FakePort}} Processor */

class FakePort {
  /** @type {Message[]} */
  messages = [];
  /** @type {((event: {data: object}) => void) | null} */
  onmessage = null;

  /** @param {Message} message @param {unknown[]} [transfer] */
  postMessage(message, transfer = []) {
    this.messages.push(structuredClone(message, { transfer: /** @type {ArrayBuffer[]} */ (transfer) }));
  }

  /** @param {object} command */
  send(command) {
    this.onmessage?.({ data: command });
  }

  /** @param {string} type */
  of(type) {
    return this.messages.filter((message) => message.type === type);
  }
}

const scope = /** @type {Record<string, unknown>} */ (/** @type {unknown} */ (globalThis));
/** @type {(new (options: object) => Processor) | undefined} */
let registered;
scope.AudioWorkletProcessor = class {
  port = new FakePort();
};
scope.registerProcessor = (/** @type {string} */ _name, /** @type {typeof registered} */ processor) => {
  registered = processor;
};
scope.currentTime = 0;
scope.sampleRate = 16_000;
// Not by name: the page's types do not hold in the audio thread, whose project checks this module.
await import(new URL("../../static/duplex/lib/capture-processor.js", import.meta.url).href);

/** @param {number} rateHz @param {object} [processorOptions] @returns {Processor} */
function createRunning(rateHz, processorOptions) {
  assert.ok(registered);
  scope.sampleRate = rateHz;
  // A browser leaves the key out where the page gives no options.
  return new registered(processorOptions ? { processorOptions } : {});
}

/** @param {number} rateHz @param {number} chunkSize @returns {Processor} */
function createProcessor(rateHz, chunkSize) {
  return createRunning(rateHz, { chunkSize, waitsForStart: true });
}

/** @param {Processor} processor @param {Float32Array[]} channels */
function feed(processor, channels) {
  for (let at = 0; at + 128 <= channels[0].length; at += 128) {
    assert.equal(processor.process([channels.map((channel) => channel.subarray(at, at + 128))]), true);
  }
}

/** @param {Processor} processor */
function captured(processor) {
  return Float32Array.from(processor.port.of("chunk").flatMap(({ audio }) => [...audio]));
}

const tone = Float32Array.from({ length: 128 * 300 }, (_, i) => 0.5 * Math.sin(i / 7));

test("whole chunks come between start and stop, and the rest at the stop", () => {
  const processor = createProcessor(16_000, 1_000);
  feed(processor, [tone.subarray(0, 1_280)]);
  assert.deepEqual(processor.port.of("chunk"), []);
  processor.port.send({ type: "start" });
  feed(processor, [tone.subarray(0, 2_560)]);
  assert.deepEqual(
    processor.port.of("chunk").map(({ audio }) => audio.length),
    [1_000, 1_000],
  );
  processor.port.send({ type: "stop" });
  const chunks = processor.port.of("chunk");
  assert.equal(chunks[2].audio.length, 560);
  assert.equal(processor.port.messages.at(-1)?.type, "stopped");
  assert.deepEqual(captured(processor), tone.slice(0, 2_560));
});

for (const [options, chunkSamples] of /** @type {[object | undefined, number][]} */ ([
  [undefined, 8_000],
  [{ chunkSize: 16_000 }, 16_000],
])) {
  test(`without a start chunks of ${chunkSamples} samples come by themselves`, () => {
    const processor = createRunning(16_000, options);
    feed(processor, [tone]);
    const chunks = processor.port.of("chunk");
    const count = Math.floor(tone.length / chunkSamples);
    assert.deepEqual(
      chunks.map(({ audio }) => audio.length),
      Array(count).fill(chunkSamples),
    );
    processor.port.send({ type: "stop" });
    assert.deepEqual(captured(processor), tone);
  });
}

test("a second start begins with an empty chunk", () => {
  const processor = createProcessor(16_000, 128);
  for (let run = 0; run < 2; run += 1) {
    processor.port.send({ type: "start" });
    feed(processor, [tone.subarray(0, 256)]);
    processor.port.send({ type: "stop" });
  }
  assert.deepEqual(
    processor.port.of("chunk").map(({ audio }) => audio),
    [tone.slice(0, 128), tone.slice(128, 256), tone.slice(0, 128), tone.slice(128, 256)],
  );
});

for (const rateHz of [44_100, 48_000]) {
  test(`a context at ${rateHz} Hz is resampled to 16 kHz`, () => {
    const processor = createProcessor(rateHz, 800);
    processor.port.send({ type: "start" });
    feed(processor, [tone]);
    const expected = resample(tone, rateHz, 16_000);
    const received = captured(processor);
    assert.ok(received.length >= expected.length - 1_000);
    assert.deepEqual(received, expected.slice(0, received.length));
  });
}

test("stereo is mixed to mono", () => {
  const processor = createProcessor(16_000, 128);
  processor.port.send({ type: "start" });
  feed(processor, [tone.subarray(0, 128), new Float32Array(128)]);
  assert.deepEqual(
    captured(processor),
    tone.slice(0, 128).map((x) => x / 2),
  );
});

test("a source without a signal counts as zeros, so that time goes on", () => {
  const processor = createProcessor(16_000, 256);
  processor.port.send({ type: "start" });
  processor.process([[]]);
  processor.process([[]]);
  assert.deepEqual(captured(processor), new Float32Array(256));
});

test("levels come 20 times a second, with or without chunks, and know all-zero sound", () => {
  const processor = createProcessor(16_000, 16_000);
  feed(processor, [new Float32Array(16_000)]);
  feed(processor, [tone.subarray(0, 16_000)]);
  const levels = processor.port.of("level");
  assert.equal(levels.length, 40);
  assert.equal(levels[5].isSilent, true);
  assert.equal(levels[35].isSilent, false);
  assert.ok(Math.abs(levels[35].rms - 0.5 * Math.SQRT1_2) < 0.01);
});

test("features and windows come on demand", () => {
  const processor = createProcessor(16_000, 16_000);
  processor.port.send({ type: "features", isOn: true });
  processor.port.send({ type: "windows", isOn: true });
  feed(processor, [tone.subarray(0, 16_000)]);
  assert.equal(processor.port.of("feature").length, 100);
  assert.equal(processor.port.of("window").length, 31);
  assert.deepEqual(processor.port.of("window")[1].audio, tone.slice(512, 1_024));
  processor.port.send({ type: "features", isOn: false });
  feed(processor, [tone.subarray(0, 1_280)]);
  assert.equal(processor.port.of("feature").length, 100);
});

test("a recycled buffer carries a later chunk, a strange one is refused", () => {
  const processor = createProcessor(16_000, 128);
  processor.port.send({ type: "start" });
  feed(processor, [tone.subarray(0, 512)]);
  processor.port.send({ type: "recycle", buffer: new ArrayBuffer(12) });
  processor.port.send({ type: "recycle", buffer: processor.port.of("chunk")[0].audio.slice().buffer });
  feed(processor, [tone.subarray(512, 1_024)]);
  assert.deepEqual(captured(processor), tone.slice(0, 1_024));
});

test("close ends the processor", () => {
  const processor = createProcessor(16_000, 128);
  processor.port.send({ type: "close" });
  assert.equal(processor.process([[]]), false);
});
