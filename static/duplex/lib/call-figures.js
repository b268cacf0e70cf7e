// @ts-check
/** The figures of a live call, how good each is, and its units as columns. Pure: no words, no formats. */

/** @import { SessionState } from "./session-state.js" */
/** @import { UnitRecord } from "./unit-log.js" */

/** @typedef {"good" | "caution" | "bad" | "none"} Grade */

/** First sound after so long is good, or still bearable, ms. */
const TTFS_MS = Object.freeze([1_000, 2_000]);
/** Change between the clocks of page and server, ms. */
const DRIFT_MS = Object.freeze([50, 200]);
/** Sound queued while the model speaks: above is good, or still enough, ms. */
const AHEAD_MS = Object.freeze([200, 50]);
/** Silence heard in the middle of answers, summed up, ms. */
const SHIFT_MS = Object.freeze([0, 200]);
const KV_SHARE = Object.freeze([0.5, 0.8]);
/** Share of a unit's length that its work takes. */
const INFER_SHARE = Object.freeze([0.8, 1]);

/** @param {number | null} value @param {readonly number[]} limits good, bearable up to here @returns {Grade} */
export function gradeLow(value, [good, bearable]) {
  if (value === null || !Number.isFinite(value)) return "none";
  if (value <= good) return "good";
  return value <= bearable ? "caution" : "bad";
}

/** @param {number | null} value @param {readonly number[]} limits good, bearable from here on @returns {Grade} */
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

// Units as columns of a picture: stages stacked in ms, memory, sound ahead, gaps.

export const COLUMNS_SHOWN = 60;
/** Room above the budget line, as a share of it. */
const HEADROOM = 1.2;
/** The picture grows with slow units up to so many budgets; higher columns are cut off. */
const MOST_BUDGETS = 3;
/** Full height of the line of sound ahead, ms. */
const AHEAD_SCALE_MS = 2_000;

/** From the ground up. @type {readonly ["read", "think", "voice", "sound", "rest"]} */
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

/** @param {number} share */
const bounded = (share) => Math.min(1, Math.max(0, share));

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
    kvShare: maxKvTokens > 0 ? bounded(unit.kvTokens / maxKvTokens) : 0, // of the largest memory
    aheadMs: unit.aheadMs,
    aheadShare: bounded((unit.aheadMs ?? 0) / AHEAD_SCALE_MS),
    gapMs: unit.gapMs,
  };
}

/** @param {readonly UnitRecord[]} units @param {{chunkMs: number, maxKvTokens: number}} limits @returns {UnitColumn[]} */
export function columnsOf(units, limits) {
  return units.slice(-COLUMNS_SHOWN).map((unit) => columnOf(unit, limits));
}

/** How many ms the full height stands for. @param {UnitColumn[]} columns @param {number} chunkMs */
export function heightMs(columns, chunkMs) {
  const highest = columns.reduce((most, column) => Math.max(most, column.totalMs), 0);
  return Math.min(MOST_BUDGETS * chunkMs, Math.max(chunkMs, highest)) * HEADROOM;
}

// The last seconds of sound as levels, one per tick, and what happened in each.

/** @typedef {"quiet" | "speech" | "answer" | "closed"} LevelKind */
/** @typedef {{share: number, kind: LevelKind}} LevelEntry `share` is 0 to 1 */

/** Keeps a fixed number of them; the oldest goes first. */
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
