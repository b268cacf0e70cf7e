// @ts-check
/**
 * Loads the outline of a replay's sound piece by piece, only where somebody looks. Device.
 */

import { byteRange, peaksOf, wavShape } from "./wav-peaks.js";

/** @typedef {import("./wav-peaks.js").WavShape} WavShape */
/** @typedef {import("./time-axis.js").View} View */

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
