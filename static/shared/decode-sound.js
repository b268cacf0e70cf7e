// @ts-check
/**
 * Sound files of any kind the browser knows, as mono samples at 16 kHz. Device.
 */

import { mixToMono } from "./pcm.js";
import { VOICE_RATE_HZ, nameOfFile, voiceProblem } from "./voice.js";

/** @typedef {import("./voice.js").Voice} Voice */
/** @typedef {import("./voice.js").VoiceLimits} VoiceLimits */
/** @typedef {"too_short" | "too_long" | "silent" | "too_big" | "unreadable"} VoiceErrorCode */

/** A file that cannot be a voice, with the reason as a code. */
export class VoiceError extends Error {
  /** @param {VoiceErrorCode} code @param {number} [lengthS] how long the sound is, where known */
  constructor(code, lengthS = 0) {
    super(`voice: ${code}`);
    this.name = "VoiceError";
    this.code = code;
    this.lengthS = lengthS;
  }
}

/**
 * Decodes a sound file.
 *
 * @param {Blob} file
 * @returns {Promise<Float32Array>} mono, 16 kHz
 * @throws {VoiceError} the browser knows no way to read it
 */
export async function decodeSound(file) {
  const bytes = await file.arrayBuffer();
  // Decoding brings the sound to the context's rate, band-limited.
  const context = new OfflineAudioContext(1, 1, VOICE_RATE_HZ);
  const buffer = await context.decodeAudioData(bytes).catch(() => {
    throw new VoiceError("unreadable");
  });
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, i) => buffer.getChannelData(i));
  return mixToMono(channels);
}

/**
 * Makes a voice of a file.
 *
 * @param {File} file
 * @param {VoiceLimits} limits
 * @returns {Promise<Voice>}
 * @throws {VoiceError}
 */
export async function readVoiceFile(file, limits) {
  if (file.size > limits.maxFileBytes) throw new VoiceError("too_big");
  const samples = await decodeSound(file);
  const problem = voiceProblem(samples, limits);
  if (problem) throw new VoiceError(problem, samples.length / VOICE_RATE_HZ);
  return { name: nameOfFile(file.name), samples, origin: "upload" };
}
