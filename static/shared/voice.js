// @ts-check
/**
 * A voice sample as pages hold it: mono float32 at 16 kHz, its name, where it is from. Pure.
 */

import { base64ToFloats, floatsToBase64 } from "./pcm.js";

export const VOICE_RATE_HZ = 16_000;
const SHORTEST_S = 0.5; // the server refuses shorter samples
const LONGEST_S = 30; // the same for longer ones, unless it says otherwise
const LARGEST_FILE_BYTES = 10 * 1024 * 1024;

/**
 * @typedef {"default" | "preset" | "upload" | "library"} VoiceOrigin
 *
 * @typedef {Object} Voice
 * @property {string} name for people
 * @property {Float32Array} samples mono, 16 kHz
 * @property {VoiceOrigin} origin
 *
 * @typedef {Object} VoiceLimits
 * @property {number} minS
 * @property {number} maxS
 * @property {number} maxFileBytes
 */

/**
 * What the server accepts.
 *
 * @param {{limits?: Record<string, number>} | null} defaults answer of GET /api/frontend_defaults
 * @returns {VoiceLimits}
 */
export function voiceLimits(defaults) {
  const limits = defaults?.limits ?? {};
  return {
    minS: limits.reference_min_s ?? SHORTEST_S,
    maxS: limits.reference_max_s ?? LONGEST_S,
    maxFileBytes: limits.reference_upload_bytes ?? LARGEST_FILE_BYTES,
  };
}

/**
 * Says why a sample cannot be used, null if it can.
 *
 * @param {Float32Array} samples
 * @param {VoiceLimits} limits
 * @returns {"too_short" | "too_long" | "silent" | null}
 */
export function voiceProblem(samples, { minS, maxS }) {
  const lengthS = samples.length / VOICE_RATE_HZ;
  if (lengthS < minS) return "too_short";
  if (lengthS > maxS) return "too_long";
  return samples.some((sample) => sample !== 0) ? null : "silent";
}

/** @param {Voice} voice @returns {number} seconds */
export function voiceLengthS(voice) {
  return voice.samples.length / VOICE_RATE_HZ;
}

/** @param {Voice} voice @returns {string} Base64 as messages carry it */
export function voiceToWire(voice) {
  return floatsToBase64(voice.samples);
}

/**
 * @param {string} name
 * @param {string} data Base64 of float32 samples
 * @param {VoiceOrigin} origin
 * @returns {Voice}
 */
export function voiceFromWire(name, data, origin) {
  return { name, samples: base64ToFloats(data), origin };
}

/**
 * A name without its folder and ending.
 *
 * @param {string} fileName
 */
export function nameOfFile(fileName) {
  return fileName.replace(/^.*[\\/]/, "").replace(/\.[A-Za-z0-9]{1,5}$/, "") || fileName;
}
