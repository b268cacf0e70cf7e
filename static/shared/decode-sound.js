// @ts-check
/** Sounds as samples: of files, and the voices of the server. Device. */

import { ApiError, getJson } from "./api.js";
import { mixToMono } from "./pcm.js";
import { VOICE_RATE_HZ, nameOfFile, voiceFromWire, voiceProblem } from "./prompt.js";

/** @import { Voice, VoiceLimits } from "./prompt.js" */

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

/** @param {Blob} file @returns {Promise<Float32Array>} mono, 16 kHz @throws {VoiceError} the browser knows no way to read it */
export async function decodeMono(file) {
  const bytes = await file.arrayBuffer();
  // Decoding brings the sound to the context's rate, band-limited.
  const context = new OfflineAudioContext(1, 1, VOICE_RATE_HZ);
  const buffer = await context.decodeAudioData(bytes).catch(() => {
    throw new VoiceError("unreadable");
  });
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, i) => buffer.getChannelData(i));
  return mixToMono(channels);
}

/** Makes a voice of a file. @param {File} file @param {VoiceLimits} limits @returns {Promise<Voice>} @throws {VoiceError} */
export async function readVoiceFile(file, limits) {
  if (file.size > limits.maxFileBytes) throw new VoiceError("too_big");
  const samples = await decodeMono(file);
  const problem = voiceProblem(samples, limits);
  if (problem) throw new VoiceError(problem, samples.length / VOICE_RATE_HZ);
  return { name: nameOfFile(file.name), samples, origin: "upload" };
}

// The server's own voice and its voice library, fetched once and kept.

const NOT_FOUND = 404;

/** @typedef {{id: string, name: string, duration_ms: number}} LibraryEntry */

/** @type {Promise<Voice | null> | null} */
let defaultVoice = null;
/** @type {Map<string, Promise<Voice>>} */
const libraryVoices = new Map();

/**
 * @returns {Promise<Voice | null>} null if this server has none
 * @throws {ApiError} it was not reached; the next call tries again
 */
export function loadDefaultVoice() {
  defaultVoice ??= fetchDefault().catch((error) => {
    defaultVoice = null;
    throw error;
  });
  return defaultVoice;
}

/** @returns {Promise<Voice | null>} */
async function fetchDefault() {
  try {
    /** @type {{name: string, base64: string}} */
    const { name, base64 } = await getJson("/api/default_ref_audio");
    return voiceFromWire(name, base64, "default");
  } catch (error) {
    if (error instanceof ApiError && error.status === NOT_FOUND) return null;
    throw error;
  }
}

/** Lists the voices kept on the server. @returns {Promise<LibraryEntry[]>} oldest first */
export async function listLibraryVoices() {
  /** @type {{ref_audios: LibraryEntry[]}} */
  const { ref_audios: entries } = await getJson("/api/assets/ref_audio");
  return entries;
}

/** Fetches one voice of the library. @param {LibraryEntry} entry @returns {Promise<Voice>} @throws {ApiError} */
export function loadLibraryVoice({ id, name }) {
  const known = libraryVoices.get(id);
  if (known) return known;
  const loading = fetchLibraryVoice(id, name).catch((error) => {
    libraryVoices.delete(id);
    throw error;
  });
  libraryVoices.set(id, loading);
  return loading;
}

/** @param {string} id @param {string} name @returns {Promise<Voice>} */
async function fetchLibraryVoice(id, name) {
  const answer = await fetch(`/api/assets/ref_audio/${encodeURIComponent(id)}/audio`);
  if (!answer.ok) throw new ApiError("The voice could not be fetched.", "not_found", answer.status);
  return { name, samples: await decodeMono(await answer.blob()), origin: "library" };
}
