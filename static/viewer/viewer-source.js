// @ts-check
/** What a replay fetches: the recording, and the peaks of its sound. Device. */

import { ApiError, getJson } from "../shared/api.js";

/** @import { Meta, Recording } from "./recording.js" */
/** @import { View } from "./time-axis.js" */

const AGAIN_MS = 2_000;
const REPLAY_LIMIT_MS = 180_000; // a sound that was not made by then will not be
const CONFLICT = 409;

/** @param {string} recordingId @param {string} [what] */
export function pathOf(recordingId, what) {
  const path = `/api/sessions/${encodeURIComponent(recordingId)}`;
  return what ? `${path}/${what}` : path;
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
function wait(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

/**
 * Waits until the recording is complete.
 * @param {string} recordingId
 * @param {{onMeta: (meta: Meta) => void, onWaiting: (status: string) => void, signal: AbortSignal}} options
 *   `onWaiting`: it is still being written, and how far it is
 * @returns {Promise<{meta: Meta, recording: Recording}>}
 */
export async function loadRecording(recordingId, { onMeta, onWaiting, signal }) {
  for (;;) {
    /** @type {Meta} */
    const meta = await getJson(pathOf(recordingId), { signal });
    onMeta(meta);
    try {
      /** @type {Recording} */
      const recording = await getJson(pathOf(recordingId, "recording"), { signal });
      return { meta, recording };
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== CONFLICT) throw error;
      onWaiting(meta.status);
    }
    await wait(AGAIN_MS, signal);
  }
}

/**
 * Whether the sound of the whole conversation may still come.
 * @param {Meta} meta
 * @param {Recording} recording
 * @param {number} nowMs
 */
export function mayGetReplay({ ended_at: endedAt, app_type: appType }, recording, nowMs) {
  if (recording.merged_replay || appType === "chat" || appType === "streaming") return false;
  return endedAt === undefined || nowMs - Date.parse(endedAt) < REPLAY_LIMIT_MS;
}

/**
 * Waits for the sound of the whole conversation, which is made after its end.
 * @param {string} recordingId
 * @param {AbortSignal} signal
 * @returns {Promise<Recording | null>} null if it did not come
 */
export async function waitForReplay(recordingId, signal) {
  const untilMs = Date.now() + REPLAY_LIMIT_MS;
  while (Date.now() < untilMs) {
    await wait(AGAIN_MS, signal);
    /** @type {Recording | null} */
    const recording = await getJson(pathOf(recordingId, "recording"), { signal }).then(
      (answer) => /** @type {Recording} */ (answer),
      () => null,
    );
    if (recording?.merged_replay) return recording;
  }
  return null;
}

// Loads the outline of a replay's sound piece by piece, only where somebody looks.

const HEAD_BYTES = 4_096;
const TILE_S = 20;
const PEAKS_PER_S = 100;
const AT_ONCE = 2;
const PARTIAL_CONTENT = 206;

/**
 * @typedef {Object} PeakSource
 * @property {(view: View) => void} look load what this view shows; what was asked before may wait
 * @property {(view: View) => Float32Array[]} peaks of each channel; 0 where nothing is loaded yet
 * @property {() => void} close
 */

/**
 * @param {string} url of a WAV file
 * @param {() => void} onMore more is loaded
 * @param {() => void} [onFailed] there is nothing to show
 * @returns {PeakSource}
 */
export function openPeaks(url, onMore, onFailed) {
  /** @type {WavShape | null} */
  let shape = null;
  let [isClosed, failures] = [false, 0];
  /** @type {Map<number, Float32Array[] | "loading">} */
  const tiles = new Map();
  /** @type {View} */
  let wanted = { fromS: 0, toS: 0 };

  const bytes = async (/** @type {number} */ first, /** @type {number} */ last) => {
    const answer = await fetch(url, { headers: { Range: `bytes=${first}-${last}` } });
    if (!answer.ok) throw new Error(`The sound was not given (${answer.status}).`);
    const all = await answer.arrayBuffer();
    return answer.status === PARTIAL_CONTENT ? all : all.slice(first, last + 1);
  };
  const missing = () => {
    const last = Math.floor(wanted.toS / TILE_S);
    for (let tile = Math.floor(wanted.fromS / TILE_S); tile <= last; tile += 1) {
      const isInside = shape !== null && tile * TILE_S * shape.rateHz < shape.frames;
      if (isInside && !tiles.has(tile)) return tile;
    }
    return null;
  };
  const loadNext = async () => {
    const tile = missing();
    const busy = [...tiles.values()].filter((held) => held === "loading").length;
    if (isClosed || shape === null || tile === null || busy >= AT_ONCE || failures > AT_ONCE) return;
    tiles.set(tile, "loading");
    const { rateHz, channels } = shape;
    const { first, last } = byteRange(shape, tile * TILE_S * rateHz, (tile + 1) * TILE_S * rateHz);
    try {
      tiles.set(tile, peaksOf(await bytes(first, last), channels, Math.round(rateHz / PEAKS_PER_S)));
    } catch {
      failures += 1;
      tiles.delete(tile);
    }
    if (isClosed) return;
    onMore();
    void loadNext();
  };
  const open = async () => {
    shape = wavShape(await bytes(0, HEAD_BYTES - 1));
    if (!shape) throw new Error("This is no WAV file.");
    for (let index = 0; index < AT_ONCE; index += 1) void loadNext();
  };
  open().catch(() => onFailed?.());

  return {
    look(view) {
      wanted = view;
      for (let index = 0; index < AT_ONCE; index += 1) void loadNext();
    },
    peaks(view) {
      const from = Math.round(view.fromS * PEAKS_PER_S);
      const count = Math.max(1, Math.round((view.toS - view.fromS) * PEAKS_PER_S));
      const channels = shape?.channels ?? 2;
      const perTile = TILE_S * PEAKS_PER_S;
      return Array.from({ length: channels }, (_, channel) => {
        const line = new Float32Array(count);
        for (let index = 0; index < count; index += 1) {
          const at = from + index;
          const tile = tiles.get(Math.floor(at / perTile));
          if (tile && tile !== "loading") line[index] = tile[channel][at % perTile] ?? 0;
        }
        return line;
      });
    },
    close() {
      isClosed = true;
    },
  };
}

// Reads the shape of a WAV file and the loudest samples of a part of it.

const PCM16_SCALE = 32_768;
const BYTES_PER_SAMPLE = 2;
const RIFF_HEAD_BYTES = 12;
const CHUNK_HEAD_BYTES = 8;

/**
 * @typedef {Object} WavShape
 * @property {number} rateHz
 * @property {number} channels
 * @property {number} dataOffset bytes before the first sample
 * @property {number} frames samples of each channel
 */

/** @param {ArrayBuffer} head the file's beginning @returns {WavShape | null} null if it is no 16-bit WAV file */
export function wavShape(head) {
  const view = new DataView(head);
  if (head.byteLength < RIFF_HEAD_BYTES || tag(view, 0) !== "RIFF" || tag(view, 8) !== "WAVE") return null;
  let [at, rateHz, channels, bits] = [RIFF_HEAD_BYTES, 0, 0, 0];
  while (at + CHUNK_HEAD_BYTES <= head.byteLength) {
    const name = tag(view, at);
    const size = view.getUint32(at + 4, true);
    const body = at + CHUNK_HEAD_BYTES;
    if (name === "data") {
      if (bits !== BYTES_PER_SAMPLE * 8 || channels === 0) return null;
      return { rateHz, channels, dataOffset: body, frames: Math.floor(size / (BYTES_PER_SAMPLE * channels)) };
    }
    if (name === "fmt " && body + 16 <= head.byteLength) {
      channels = view.getUint16(body + 2, true);
      rateHz = view.getUint32(body + 4, true);
      bits = view.getUint16(body + 14, true);
    }
    at = body + size + (size % 2);
  }
  return null;
}

/** @param {DataView} view @param {number} at */
function tag(view, at) {
  return String.fromCharCode(...[0, 1, 2, 3].map((index) => view.getUint8(at + index)));
}

/**
 * The byte range of a part of the sound.
 * @param {WavShape} shape
 * @param {number} fromFrame
 * @param {number} toFrame
 * @returns {{first: number, last: number}} both inside
 */
export function byteRange({ dataOffset, channels, frames }, fromFrame, toFrame) {
  const size = BYTES_PER_SAMPLE * channels;
  const end = Math.min(toFrame, frames);
  return { first: dataOffset + fromFrame * size, last: dataOffset + end * size - 1 };
}

/**
 * The loudest of every so many samples, for each channel, 0 to 1.
 * @param {ArrayBuffer} bytes interleaved PCM16, little endian
 * @param {number} channels
 * @param {number} framesPerPeak
 * @returns {Float32Array[]}
 */
export function peaksOf(bytes, channels, framesPerPeak) {
  const samples = new Int16Array(bytes, 0, Math.floor(bytes.byteLength / BYTES_PER_SAMPLE));
  const frames = Math.floor(samples.length / channels);
  const count = Math.ceil(frames / framesPerPeak);
  const peaks = Array.from({ length: channels }, () => new Float32Array(count));
  for (let frame = 0; frame < frames; frame += 1) {
    const slot = Math.floor(frame / framesPerPeak);
    for (let channel = 0; channel < channels; channel += 1) {
      const value = Math.abs(samples[frame * channels + channel]) / PCM16_SCALE;
      if (value > peaks[channel][slot]) peaks[channel][slot] = value;
    }
  }
  return peaks;
}
