/** Decodes audio files and the server's voices into samples. Device. */

import { ApiError, getJson } from "./api.js";
import { CodedError } from "./texts.js";
import { kept } from "./async.js";
import { mixToMono } from "./pcm.js";
import { VOICE_RATE_HZ, nameOfFile, voiceFromWire, voiceProblem } from "./prompt.js";

/** @import { Voice, VoiceLimits } from "./prompt.js" */

/** A file that cannot be used as a voice: `too_short`, `too_long`, `silent`, `too_big`, `unreadable`. */
export class VoiceError extends CodedError {
  /** @param {string} code @param {number} [lengthS] duration of the audio, where known */
  constructor(code, lengthS = 0) {
    super(code);
    this.lengthS = lengthS;
  }
}

/** @param {Blob} file @returns {Promise<Float32Array>} mono, 16 kHz @throws {VoiceError} the browser cannot decode it */
export async function decodeMono(file) {
  const bytes = await file.arrayBuffer();
  // Decoding resamples to the context's rate with an anti-aliasing filter.
  const context = new OfflineAudioContext(1, 1, VOICE_RATE_HZ);
  const buffer = await context.decodeAudioData(bytes).catch(() => {
    throw new VoiceError("unreadable");
  });
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, i) => buffer.getChannelData(i));
  return mixToMono(channels);
}

/** Reads a voice sample from a file. @param {File} file @param {VoiceLimits} limits @returns {Promise<Voice>} @throws {VoiceError} */
export async function readVoiceFile(file, limits) {
  if (file.size > limits.maxFileBytes) throw new VoiceError("too_big");
  const samples = await decodeMono(file);
  const problem = voiceProblem(samples, limits);
  if (problem) throw new VoiceError(problem, samples.length / VOICE_RATE_HZ);
  return { name: nameOfFile(file.name), samples, origin: "upload" };
}

// The server's default voice and its voice library, fetched once and cached.

const NOT_FOUND = 404;

/** The default voice has the id "". @type {Map<string, Promise<any>>} `any`: the server may have none of its own */
const voices = new Map();

/** @returns {Promise<Voice | null>} null if the server has none @throws {ApiError} the server could not be reached; the next call tries again */
export const loadDefaultVoice = () =>
  kept(voices, "", async () => {
    try {
      const { name, base64 } = await getJson("/api/default_ref_audio");
      return voiceFromWire(name, base64, "default");
    } catch (error) {
      if (error instanceof ApiError && error.status === NOT_FOUND) return null;
      throw error;
    }
  });

/** Voices stored on the server, oldest first. */
export const listLibraryVoices = async () => (await getJson("/api/assets/ref_audio")).ref_audios;

/** @param {Http.RefAudio} entry @returns {Promise<Voice>} @throws {ApiError} */
export const loadLibraryVoice = ({ id, name }) =>
  kept(voices, id, async () => {
    const answer = await fetch(`/api/assets/ref_audio/${encodeURIComponent(id)}/audio`);
    if (!answer.ok) throw new ApiError("The voice could not be fetched.", "not_found", answer.status);
    return { name, samples: await decodeMono(await answer.blob()), origin: "library" };
  });

/** Waits for an event of a video element. @param {HTMLVideoElement} video @param {string} type @param {number} limitMs @throws {CodedError} */
export function videoEvent(video, type, limitMs) {
  const ending = new AbortController();
  const { signal } = ending;
  return new Promise((resolve, reject) => {
    const fail = () => reject(new CodedError("undecodable", video.error));
    video.addEventListener(type, resolve, { signal });
    video.addEventListener("error", fail, { signal });
    const timer = setTimeout(fail, limitMs);
    signal.addEventListener("abort", () => clearTimeout(timer));
  }).finally(() => ending.abort());
}
