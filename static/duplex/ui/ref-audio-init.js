// @ts-check
/**
 * The server's own voice and its voice library, fetched once and kept. Device.
 */

import { ApiError, getJson } from "../../shared/api.js";
import { decodeSound } from "../../shared/decode-sound.js";
import { voiceFromWire } from "../../shared/voice.js";

const NOT_FOUND = 404;

/** @typedef {import("../../shared/voice.js").Voice} Voice */
/** @typedef {{id: string, name: string, duration_ms: number}} LibraryEntry */

/** @type {Promise<Voice | null> | null} */
let defaultVoice = null;
/** @type {Map<string, Promise<Voice>>} */
const libraryVoices = new Map();

/**
 * Fetches the default voice of the model.
 *
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

/**
 * Lists the voices kept on the server.
 *
 * @returns {Promise<LibraryEntry[]>} oldest first
 */
export async function listLibraryVoices() {
  /** @type {{ref_audios: LibraryEntry[]}} */
  const { ref_audios: entries } = await getJson("/api/assets/ref_audio");
  return entries;
}

/**
 * Fetches one voice of the library.
 *
 * @param {LibraryEntry} entry
 * @returns {Promise<Voice>}
 * @throws {ApiError}
 */
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

/**
 * @param {string} id
 * @param {string} name
 * @returns {Promise<Voice>}
 */
async function fetchLibraryVoice(id, name) {
  const answer = await fetch(`/api/assets/ref_audio/${encodeURIComponent(id)}/audio`);
  if (!answer.ok) throw new ApiError("The voice could not be fetched.", "not_found", answer.status);
  return { name, samples: await decodeSound(await answer.blob()), origin: "library" };
}
