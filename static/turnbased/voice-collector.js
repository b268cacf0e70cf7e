// @ts-check
/**
 * Gathers the pieces of an answer's voice into one WAV file. Pure.
 */

import { base64ToBytes, base64ToFloats, encodeWav, joinChunks } from "../shared/pcm.js";

const WAV_HEADER_BYTES = 44;
const BYTES_PER_S_AT = 28; // in the header of a WAV file

/** One answer's voice. */
export class VoiceCollector {
  /** @type {Float32Array[]} */
  #pieces = [];
  #rateHz = 0;
  /** @type {Uint8Array<ArrayBuffer> | null} */
  #wav = null;

  get isEmpty() {
    return this.#pieces.length === 0 && this.#wav === null;
  }

  /** @param {string} audioBase64 float32 samples @param {number} rateHz */
  add(audioBase64, rateHz) {
    this.#pieces.push(base64ToFloats(audioBase64));
    this.#rateHz = rateHz;
  }

  /** @param {string} wavBase64 the whole voice as a file */
  addWav(wavBase64) {
    this.#wav = base64ToBytes(wavBase64);
  }

  /** @returns {import("./conversation-facts.js").Voice | null} null if there was no sound */
  finish() {
    if (this.isEmpty) return null;
    const wav = this.#wav ?? encodeWav(joinChunks(this.#pieces), this.#rateHz);
    this.#pieces = [];
    return { wav: new Blob([wav], { type: "audio/wav" }), durationS: wavLengthS(wav) };
  }
}

/**
 * @param {Uint8Array} wav
 * @returns {number} seconds
 */
export function wavLengthS(wav) {
  if (wav.length < WAV_HEADER_BYTES) return 0;
  const view = new DataView(wav.buffer, wav.byteOffset, wav.byteLength);
  const bytesPerS = view.getUint32(BYTES_PER_S_AT, true);
  return bytesPerS > 0 ? (wav.length - WAV_HEADER_BYTES) / bytesPerS : 0;
}
