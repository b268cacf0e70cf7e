/**
 * Audio thread of every capture: mono mix, resampling to 16 kHz, chunking, levels 20 times a second.
 * `process` must never allocate (except chunks when the pool is empty), log or encode.
 * Device (audio worklet).
 */

import { CAPTURE_RATE_HZ, LEVELS_PER_S, PROCESSOR_NAME, WINDOW_SAMPLES } from "./capture-format.js";
import { Resampler, SpeechFeatures } from "./resampler.js";

const MAX_BLOCK_SAMPLES = 2_048; // longest block that is supported; browsers use 128 samples
const POOL_SIZE = 4; // spare chunk buffers; further ones are garbage-collected
const DEFAULT_CHUNK_SAMPLES = CAPTURE_RATE_HZ / 2; // half a second

/**
 * processorOptions: {chunkSize?: samples at 16 kHz, waitsForStart?: boolean}
 * to it:   {type: "start"} | {type: "stop"} | {type: "close"} | {type: "recycle", buffer}
 *          | {type: "features", isOn} | {type: "windows", isOn}
 * from it: {type: "chunk", audio, endTimeS} · {type: "stopped"}
 *          · {type: "level", rms, peak, isSilent} · {type: "feature", rms, upperRms}
 *          · {type: "window", audio} of 512 samples, for a voice detector
 * Chunks are sent at once, as other clients expect, or from "start" on with `waitsForStart`, until "stop", which sends the
 * shorter rest and then "stopped". Levels are always sent.
 */
class CaptureProcessor extends AudioWorkletProcessor {
  #chunkSamples;
  #mono = new Float32Array(MAX_BLOCK_SAMPLES);
  /** @type {Resampler | null} */ #resampler = null;
  #resampled;
  /** The chunk being filled. @type {Float32Array<ArrayBuffer>} */ #chunk;
  #length = 0;
  /** @type {Float32Array<ArrayBuffer>[]} */ #pool = [];
  #features = new SpeechFeatures(CAPTURE_RATE_HZ);
  #levels = new LevelMeter();
  #windows = new WindowCutter();
  #is = { running: false, closed: false, giving: { features: false, windows: false } };

  /** @param {{processorOptions?: {chunkSize?: number, waitsForStart?: boolean}}} options */
  constructor({ processorOptions: { chunkSize = DEFAULT_CHUNK_SAMPLES, waitsForStart = false } = {} }) {
    super();
    this.#chunkSamples = chunkSize;
    this.#is.running = !waitsForStart;
    this.#chunk = new Float32Array(this.#chunkSamples);
    if (sampleRate !== CAPTURE_RATE_HZ) {
      this.#resampler = new Resampler(sampleRate, CAPTURE_RATE_HZ);
    }
    this.#resampled = new Float32Array(this.#resampler?.maxOutputSamples(MAX_BLOCK_SAMPLES) ?? 0);
    for (let i = 0; i < POOL_SIZE; i += 1) this.#pool.push(new Float32Array(this.#chunkSamples));
    this.port.onmessage = (event) => this.#obey(event.data);
  }

  #obey(/** @type {{type: string, buffer?: ArrayBuffer, isOn?: boolean}} */ command) {
    if (command.type === "start") {
      this.#length = 0;
      this.#is.running = true;
    } else if (command.type === "stop" && this.#is.running) {
      this.#is.running = false;
      if (this.#length > 0) this.#send(this.#chunk.slice(0, this.#length));
      this.port.postMessage({ type: "stopped" });
    } else if (command.type === "features" || command.type === "windows") {
      this.#is.giving[command.type] = command.isOn === true;
    } else if (command.type === "recycle" && command.buffer !== undefined) {
      const isOurs = command.buffer.byteLength === this.#chunkSamples * 4;
      if (isOurs && this.#pool.length < POOL_SIZE) this.#pool.push(new Float32Array(command.buffer));
    } else if (command.type === "close") {
      this.#is.closed = true;
    }
  }

  /** @param {Float32Array[][]} inputs @returns {boolean} false ends the processor */
  process(inputs) {
    if (this.#is.closed) return false;
    const channels = inputs[0];
    // A source without signal delivers no channels; it counts as zeros, since time continues.
    const count = channels.length === 0 ? 128 : channels[0].length;
    this.#mix(channels, count);
    if (this.#resampler === null) {
      this.#take(this.#mono, count);
    } else {
      this.#take(this.#resampled, this.#resampler.process(this.#mono, this.#resampled, count));
    }
    return true;
  }

  #mix(/** @type {Float32Array[]} */ channels, /** @type {number} */ count) {
    const mono = this.#mono;
    mono.fill(0, 0, count);
    for (let c = 0; c < channels.length; c += 1) {
      const channel = channels[c];
      for (let i = 0; i < count; i += 1) mono[i] += channel[i] / channels.length;
    }
  }

  /** @param {Float32Array} samples at 16 kHz @param {number} count */
  #take(samples, count) {
    this.#measure(samples, count);
    if (!this.#is.running) return;
    for (let i = 0; i < count; i += 1) {
      this.#chunk[this.#length] = samples[i];
      this.#length += 1;
      if (this.#length === this.#chunkSamples) this.#send(this.#chunk);
    }
  }

  #measure(/** @type {Float32Array} */ samples, /** @type {number} */ count) {
    const { features, windows } = this.#is.giving;
    for (let i = 0; i < count; i += 1) {
      const sample = samples[i];
      if (this.#levels.push(sample)) this.port.postMessage(this.#levels.message);
      if (features && this.#features.push(sample)) this.port.postMessage(this.#features.frame);
      if (windows && this.#windows.push(sample)) this.port.postMessage(this.#windows.message);
    }
  }

  #send(/** @type {Float32Array<ArrayBuffer>} */ audio) {
    this.port.postMessage({ type: "chunk", audio, endTimeS: currentTime }, [audio.buffer]);
    this.#chunk = this.#pool.pop() ?? new Float32Array(this.#chunkSamples);
    this.#length = 0;
  }
}

registerProcessor(PROCESSOR_NAME, CaptureProcessor);

// Levels and detector windows, in reused messages (a port copies what is posted).

const LEVEL_SAMPLES = CAPTURE_RATE_HZ / LEVELS_PER_S;

class LevelMeter {
  message = { type: "level", rms: 0, peak: 0, isSilent: true };
  #count = 0;
  #sum = 0;
  #peak = 0;

  /** @param {number} sample @returns {boolean} true when `message` is new */
  push(sample) {
    this.#sum += sample * sample;
    this.#peak = Math.max(this.#peak, Math.abs(sample));
    this.#count += 1;
    if (this.#count < LEVEL_SAMPLES) return false;
    this.message.rms = Math.sqrt(this.#sum / this.#count);
    this.message.peak = this.#peak;
    this.message.isSilent = this.#peak === 0;
    this.#count = 0;
    this.#sum = 0;
    this.#peak = 0;
    return true;
  }
}

class WindowCutter {
  message = { type: "window", audio: new Float32Array(WINDOW_SAMPLES) };
  #length = 0;

  /** @param {number} sample @returns {boolean} true when `message` is new */
  push(sample) {
    this.message.audio[this.#length] = sample;
    this.#length = (this.#length + 1) % WINDOW_SAMPLES;
    return this.#length === 0;
  }
}
