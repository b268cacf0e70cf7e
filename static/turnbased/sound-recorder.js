// @ts-check
/**
 * Records one sound from the microphone at 16 kHz, up to a limit. Device.
 *
 * Events: `level` {rms} · `silent` / `audible` · `limit` the longest sound is reached · `ended` the device went.
 */

import { openMicrophone } from "../duplex/lib/microphone.js";
import { Emitter } from "../shared/emitter.js";
import { joinChunks } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";

const RATE_HZ = LIMITS.INPUT_SAMPLE_RATE_HZ;
const CHUNK_SAMPLES = RATE_HZ / 10;

/** @typedef {import("../duplex/lib/microphone.js").Microphone} Microphone */

/**
 * @typedef {Object} RecorderEvents
 * @property {{rms: number}} level
 * @property {null} silent
 * @property {null} audible
 * @property {null} limit
 * @property {{code: string}} ended
 */

/** @extends {Emitter<RecorderEvents>} */
export class SoundRecorder extends Emitter {
  #microphone;
  #maxSamples;
  /** @type {Float32Array[]} */
  #chunks = [];
  #lengthSamples = 0;

  /** @param {Microphone} microphone @param {number} maxS */
  constructor(microphone, maxS) {
    super();
    this.#microphone = microphone;
    this.#maxSamples = Math.floor(maxS * RATE_HZ);
    microphone.addEventListener("chunk", (event) => this.#keep(detail(event).audio));
    microphone.addEventListener("level", (event) => this.emit("level", { rms: detail(event).rms }));
    microphone.addEventListener("silent", () => this.emit("silent", null));
    microphone.addEventListener("audible", () => this.emit("audible", null));
    microphone.addEventListener("ended", (event) => this.emit("ended", { code: detail(event).code }));
    microphone.start();
  }

  get lengthS() {
    return this.#lengthSamples / RATE_HZ;
  }

  /** Ends it and lets the device go. @returns {Promise<Float32Array<ArrayBuffer>>} mono, 16 kHz */
  async finish() {
    await this.#microphone.stop();
    await this.#microphone.close();
    return joinChunks(this.#chunks).subarray(0, this.#maxSamples);
  }

  /** Ends it; what was recorded is gone. */
  async cancel() {
    this.#chunks = [];
    await this.#microphone.close();
  }

  /** @param {Float32Array} audio */
  #keep(audio) {
    if (this.#lengthSamples >= this.#maxSamples) return;
    this.#chunks.push(audio.slice());
    this.#lengthSamples += audio.length;
    this.#microphone.recycle(audio);
    if (this.#lengthSamples >= this.#maxSamples) this.emit("limit", null);
  }
}

/** The microphone's events carry what its own file says. @param {Event} event */
function detail(event) {
  return /** @type {CustomEvent} */ (event).detail;
}

/**
 * @param {{maxS: number, deviceId?: string}} options
 * @returns {Promise<SoundRecorder>}
 * @throws {import("../duplex/lib/microphone.js").MicrophoneError}
 */
export async function startRecording({ maxS, deviceId }) {
  return new SoundRecorder(await openMicrophone({ deviceId, chunkSamples: CHUNK_SAMPLES }), maxS);
}
