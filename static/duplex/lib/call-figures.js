/** Metrics of a live call with their grades, and its units as columns of the timeline. Pure. */

/** @import { SessionState } from "./session-state.js" */
/** @import { UnitRecord } from "./unit-log.js" */

/** @typedef {"good" | "caution" | "bad" | "none"} Grade */

const TTFS_MS = Object.freeze([1_000, 2_000]); // limits of the time to first audio: good and acceptable, ms
const DRIFT_MS = Object.freeze([50, 200]); // limits of the clock drift between page and server, ms
const AHEAD_MS = Object.freeze([200, 50]); // lower limits of the audio queued while the model speaks: good and acceptable, ms
const SHIFT_MS = Object.freeze([0, 200]); // limits of the total audible gaps, ms
const KV_SHARE = Object.freeze([0.5, 0.8]);
const INFER_SHARE = Object.freeze([0.8, 1]); // limits of the compute time as a share of the unit's length

/** @param {number | null} value @param {readonly number[]} limits upper bounds of good and acceptable @returns {Grade} */
export function gradeLow(value, [good, bearable]) {
  if (value === null || !Number.isFinite(value)) return "none";
  if (value <= good) return "good";
  return value <= bearable ? "caution" : "bad";
}

/** @param {number | null} value @param {readonly number[]} limits lower bounds of good and acceptable @returns {Grade} */
export function gradeHigh(value, [good, bearable]) {
  return gradeLow(value === null ? null : -value, [-good, -bearable]);
}

/** @param {SessionState} state @param {number} maxKvTokens */
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

// Units as columns of the timeline: stages stacked in ms, context, buffered audio, gaps.

export const COLUMNS_SHOWN = 60;
const HEADROOM = 1.2; // headroom above the budget line, as a share of it
const MOST_BUDGETS = 3; // the scale grows with slow units up to this many budgets; higher columns are clipped
const AHEAD_SCALE_MS = 2_000; // full scale of the line of buffered audio, ms

/** From bottom to top. @type {readonly ["read", "think", "voice", "sound", "rest"]} */
export const STAGES = Object.freeze(["read", "think", "voice", "sound", "rest"]);
/** @typedef {typeof STAGES[number]} Stage */

/** @typedef {"listen" | "speak" | "interrupt"} UnitKind */

/** @typedef {ReturnType<typeof columnOf>} UnitColumn */

/** @param {UnitRecord} unit @returns {UnitKind} */
export function kindOf(unit) {
  if (unit.isBargeIn || unit.isMuted) return "interrupt";
  return unit.isListen ? "listen" : "speak";
}

/** @param {UnitRecord} unit @returns {Record<Stage, number>} */
export function stagesOf(unit) {
  const read = unit.prefillMs;
  const think = unit.costLlmMs;
  const voice = unit.costTtsMs;
  const sound = unit.costToken2wavMs ?? 0;
  return { read, think, voice, sound, rest: Math.max(0, unit.costAllMs - read - think - voice - sound) };
}

const bounded = (/** @type {number} */ share) => Math.min(1, Math.max(0, share));

/** @param {UnitRecord} unit @param {{chunkMs: number, maxKvTokens: number}} limits */
export function columnOf(unit, { chunkMs, maxKvTokens }) {
  const stagesMs = stagesOf(unit);
  const totalMs = STAGES.reduce((sum, stage) => sum + stagesMs[stage], 0);
  return {
    step: unit.step,
    kind: kindOf(unit),
    stagesMs,
    totalMs,
    wallMs: unit.wallClockMs,
    isLate: Math.max(totalMs, unit.wallClockMs) > chunkMs, // over the budget
    isEndOfTurn: unit.isEndOfTurn,
    kvTokens: unit.kvTokens,
    kvShare: maxKvTokens > 0 ? bounded(unit.kvTokens / maxKvTokens) : 0, // of the context limit
    aheadMs: unit.aheadMs,
    aheadShare: bounded((unit.aheadMs ?? 0) / AHEAD_SCALE_MS),
    gapMs: unit.gapMs,
  };
}

/** @param {readonly UnitRecord[]} units @param {{chunkMs: number, maxKvTokens: number}} limits @returns {UnitColumn[]} */
export function columnsOf(units, limits) {
  return units.slice(-COLUMNS_SHOWN).map((unit) => columnOf(unit, limits));
}

/** Full scale of the timeline, ms. @param {UnitColumn[]} columns @param {number} chunkMs */
export function heightMs(columns, chunkMs) {
  const highest = columns.reduce((most, column) => Math.max(most, column.totalMs), 0);
  return Math.min(MOST_BUDGETS * chunkMs, Math.max(chunkMs, highest)) * HEADROOM;
}

// Recent levels, one per tick, with the kind of each.

/** @typedef {"quiet" | "speech" | "answer" | "closed"} LevelKind */
/** @typedef {{share: number, kind: LevelKind}} LevelEntry `share` is 0 to 1 */

/** A ring of fixed size; the oldest entry is dropped first. */
export class LevelHistory {
  #entries;
  #next = 0;
  #length = 0;

  /** @param {number} capacity */
  constructor(capacity) {
    this.#entries = Array.from({ length: capacity }, () => /** @type {LevelEntry} */ ({ share: 0, kind: "quiet" }));
  }

  get length() {
    return this.#length;
  }

  /** @param {number} share @param {LevelKind} kind */
  push(share, kind) {
    const entry = this.#entries[this.#next];
    entry.share = Math.min(1, Math.max(0, share));
    entry.kind = kind;
    this.#next = (this.#next + 1) % this.#entries.length;
    this.#length = Math.min(this.#length + 1, this.#entries.length);
  }

  /** @param {number} age 0 is the newest @returns {LevelEntry} */
  at(age) {
    const count = this.#entries.length;
    return this.#entries[(this.#next - 1 - age + 2 * count) % count];
  }

  clear() {
    this.#length = 0;
  }
}
