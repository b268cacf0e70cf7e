// @ts-check
/**
 * The figures of a live call and how good each is. Pure: no words, no formats.
 */

/** @typedef {import("./duplex-types.js").SessionState} SessionState */
/** @typedef {"good" | "caution" | "bad" | "none"} Grade */

/** First sound after so long is good, or still bearable, ms. */
const TTFS_MS = Object.freeze([1_000, 2_000]);
/** Change between the clocks of page and server, ms. */
const DRIFT_MS = Object.freeze([50, 200]);
/** Sound queued while the model speaks: above is good, or still enough, ms. */
const AHEAD_MS = Object.freeze([200, 50]);
/** Silence heard in the middle of answers, summed up, ms. */
const SHIFT_MS = Object.freeze([0, 200]);
/** Share of the memory in use. */
const KV_SHARE = Object.freeze([0.5, 0.8]);
/** Share of a unit's length that its work takes. */
const INFER_SHARE = Object.freeze([0.8, 1]);

/**
 * @param {number | null} value
 * @param {readonly number[]} limits good up to the first, bearable up to the second
 * @returns {Grade}
 */
export function gradeLow(value, [good, bearable]) {
  if (value === null || !Number.isFinite(value)) return "none";
  if (value <= good) return "good";
  return value <= bearable ? "caution" : "bad";
}

/**
 * @param {number | null} value
 * @param {readonly number[]} limits good from the first, bearable from the second on
 * @returns {Grade}
 */
export function gradeHigh(value, [good, bearable]) {
  if (value === null || !Number.isFinite(value)) return "none";
  if (value >= good) return "good";
  return value >= bearable ? "caution" : "bad";
}

/**
 * @typedef {Object} Figures
 * @property {number | null} kvShare
 * @property {number | null} wallMs
 * @property {number | null} costMs
 * @property {Record<"kv" | "infer" | "ttfs" | "ahead" | "shift" | "drift", Grade>} grades
 */

/**
 * @param {SessionState} state
 * @param {number} maxKvTokens
 * @returns {Figures}
 */
export function figuresOf(state, maxKvTokens) {
  const unit = state.units.at(-1) ?? null;
  const kvShare = unit && maxKvTokens > 0 ? state.kvTokens / maxKvTokens : null;
  const wallMs = unit?.wallClockMs ?? null;
  const isSounding = state.activity === "speaking" && state.isTurnOpen;
  return {
    kvShare,
    wallMs,
    costMs: unit?.costAllMs ?? null,
    grades: {
      kv: gradeLow(kvShare, KV_SHARE),
      infer: gradeLow(wallMs === null ? null : wallMs / state.chunkMs, INFER_SHARE),
      ttfs: gradeLow(state.ttfsMs, TTFS_MS),
      ahead: gradeHigh(isSounding ? state.aheadMs : null, AHEAD_MS),
      shift: gradeLow(unit && state.totalShiftMs, SHIFT_MS),
      drift: gradeLow(state.driftMs === null ? null : Math.abs(state.driftMs), DRIFT_MS),
    },
  };
}
