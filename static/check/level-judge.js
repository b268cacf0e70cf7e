// @ts-check
/** Turns the microphone's levels into a bar, a peak that lingers, and a word. Pure. */

/** @typedef {"waiting" | "silent" | "quiet" | "good" | "loud"} LevelWord */

/**
 * @typedef {Object} LevelView
 * @property {number} bar 0 to 1
 * @property {number} hold 0 to 1, the highest of late
 * @property {number} peakDb dB of full scale
 * @property {LevelWord} word
 * @property {number} goodMs how long good speech was heard in all
 */

export const FLOOR_DB = -60;
const HOLD_MS = 1_200;
const HOLD_FALL_DB_PER_S = 30;
const BAR_FALL_DB_PER_S = 60;
const WORD_WINDOW_MS = 2_500; // a breath between two words must not change the word
const SILENT_AFTER_MS = 2_000;
/** Of speech, RMS over 50 ms; ours, by ear with a laptop's microphone. */
const HEARD_DB = -50;
const GOOD_DB = -36;
/** A sample this close to full scale is cut off. */
const CLIPPED_PEAK = 0.985;
/** So many pieces with one in the window: a single click is no loud speaker. */
const CLIPPED_PIECES = 6;

/** @param {number} amplitude */
export function toDb(amplitude) {
  return amplitude > 0 ? 20 * Math.log10(amplitude) : Number.NEGATIVE_INFINITY;
}

/** @param {number} db */
function toShare(db) {
  return Math.min(1, Math.max(0, 1 - db / FLOOR_DB));
}

/** @returns {{measure: (level: {rms: number, peak: number, isSilent: boolean}, nowMs: number) => LevelView}} */
export function createLevelJudge() {
  /** @type {{atMs: number, rmsDb: number, peak: number}[]} */
  let recent = [];
  let barDb = FLOOR_DB;
  let holdDb = FLOOR_DB;
  let heldAtMs = 0;
  let lastMs = /** @type {number | null} */ (null);
  let silentSinceMs = /** @type {number | null} */ (null);
  let goodMs = 0;

  /** @param {number} nowMs @returns {LevelWord} */
  const wordNow = (nowMs) => {
    if (silentSinceMs !== null && nowMs - silentSinceMs >= SILENT_AFTER_MS) return "silent";
    if (recent.filter(({ peak }) => peak >= CLIPPED_PEAK).length >= CLIPPED_PIECES) return "loud";
    const loudestDb = Math.max(...recent.map(({ rmsDb }) => rmsDb));
    if (loudestDb >= GOOD_DB) return "good";
    return loudestDb >= HEARD_DB ? "quiet" : "waiting";
  };

  return {
    measure({ rms, peak, isSilent }, nowMs) {
      const passedMs = lastMs === null ? 0 : nowMs - lastMs;
      lastMs = nowMs;
      const rmsDb = toDb(rms);
      const peakDb = toDb(peak);
      barDb = Math.max(rmsDb, barDb - (BAR_FALL_DB_PER_S * passedMs) / 1_000, FLOOR_DB);
      if (peakDb >= holdDb) {
        holdDb = peakDb;
        heldAtMs = nowMs;
      } else if (nowMs - heldAtMs > HOLD_MS) {
        holdDb = Math.max(FLOOR_DB, peakDb, holdDb - (HOLD_FALL_DB_PER_S * passedMs) / 1_000);
      }
      silentSinceMs = isSilent ? (silentSinceMs ?? nowMs) : null;
      recent = [...recent.filter(({ atMs }) => nowMs - atMs < WORD_WINDOW_MS), { atMs: nowMs, rmsDb, peak }];
      const word = wordNow(nowMs);
      if (word === "good" && rmsDb >= HEARD_DB) goodMs += passedMs;
      return { bar: toShare(barDb), hold: toShare(holdDb), peakDb, word, goodMs };
    },
  };
}
