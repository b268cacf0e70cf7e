/** Waveform peaks of a replay's audio, loaded in pieces for the visible range only. Pure. */

import { wavFormat } from "../shared/pcm.js";

/** @import { View } from "./time-axis.js" */

const HEAD_BYTES = 4_096;
const TILE_S = 20;
const PEAKS_PER_S = 100;
const AT_ONCE = 2;

/**
 * @typedef {Object} PeakSource
 * @property {(view: View) => void} look loads the visible range first
 * @property {(view: View) => Float32Array[]} peaks of each channel; 0 where nothing is loaded yet
 * @property {() => void} close
 */

/**
 * @param {(first: number, last: number) => Promise<ArrayBuffer>} bytes reads a byte range of a WAV file, both ends inclusive
 * @param {() => void} onMore more peaks are loaded
 * @param {() => void} [onFailed] loading failed
 * @returns {PeakSource}
 */
export function openPeaks(bytes, onMore, onFailed) {
  /** @type {WavShape | null} */ let shape = null;
  let [isClosed, failures] = [false, 0];
  /** @type {Map<number, Float32Array[] | "loading">} */ const tiles = new Map();
  /** @type {View} */ let wanted = { fromS: 0, toS: 0 };

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
  const load = () => {
    for (let index = 0; index < AT_ONCE; index += 1) void loadNext();
  };
  bytes(0, HEAD_BYTES - 1).then(
    (head) => {
      shape = wavShape(head);
      if (shape) load();
      else onFailed?.();
    },
    () => onFailed?.(),
  );

  return {
    look(view) {
      wanted = view;
      load();
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

// Parsing of WAV headers and computation of peaks.

const PCM16_SCALE = 32_768;
const BYTES_PER_SAMPLE = 2;

/**
 * @typedef {Object} WavShape
 * @property {number} rateHz
 * @property {number} channels
 * @property {number} dataOffset bytes before the first sample
 * @property {number} frames samples of each channel
 */

/** @param {ArrayBuffer} head the file's beginning @returns {WavShape | null} null if it is not a 16-bit WAV file */
export function wavShape(head) {
  const found = wavFormat(new Uint8Array(head));
  if (found?.bits !== BYTES_PER_SAMPLE * 8 || found.channels === 0) return null;
  const { rateHz, channels, dataOffset, dataBytes } = found;
  return { rateHz, channels, dataOffset, frames: Math.floor(dataBytes / (BYTES_PER_SAMPLE * channels)) };
}

/** @param {WavShape} shape @param {number} fromFrame @param {number} toFrame @returns {{first: number, last: number}} */
export function byteRange({ dataOffset, channels, frames }, fromFrame, toFrame) {
  const size = BYTES_PER_SAMPLE * channels;
  const end = Math.min(toFrame, frames);
  return { first: dataOffset + fromFrame * size, last: dataOffset + end * size - 1 };
}

/** @param {ArrayBuffer} bytes interleaved PCM16, little endian @param {number} channels @param {number} framesPerPeak */
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
