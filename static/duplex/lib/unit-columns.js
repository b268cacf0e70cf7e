// @ts-check
/**
 * Units as columns of a picture: stages stacked in ms, memory, sound ahead, gaps. Pure.
 */

/** @typedef {import("./unit-log.js").UnitRecord} UnitRecord */

/** Columns on the timeline. */
export const COLUMNS_SHOWN = 60;
/** Room above the budget line, as a share of it. */
const HEADROOM = 1.2;
/** The picture grows with slow units up to so many budgets; higher columns are cut off. */
const MOST_BUDGETS = 3;
/** Full height of the line of sound ahead, ms. */
const AHEAD_SCALE_MS = 2_000;

/** From the ground up: reading the input, choosing words, choosing sounds, making the sound, the rest.
 * @type {readonly ["read", "think", "voice", "sound", "rest"]}
 */
export const STAGES = Object.freeze(["read", "think", "voice", "sound", "rest"]);
/** @typedef {typeof STAGES[number]} Stage */

/** @typedef {"listen" | "speak" | "interrupt"} UnitKind */

/**
 * @typedef {Object} UnitColumn
 * @property {number} step
 * @property {UnitKind} kind
 * @property {Record<Stage, number>} stagesMs
 * @property {number} totalMs
 * @property {number} wallMs
 * @property {boolean} isLate over the budget
 * @property {boolean} isEndOfTurn
 * @property {number} kvTokens
 * @property {number} kvShare 0 to 1 of the largest memory
 * @property {number | null} aheadMs
 * @property {number} aheadShare 0 to 1 of AHEAD_SCALE_MS
 * @property {number} gapMs
 */

/**
 * @param {UnitRecord} unit
 * @returns {UnitKind}
 */
export function kindOf(unit) {
  if (unit.isBargeIn || unit.isMuted) return "interrupt";
  return unit.isListen ? "listen" : "speak";
}

/**
 * @param {UnitRecord} unit
 * @returns {Record<Stage, number>}
 */
export function stagesOf(unit) {
  const read = unit.prefillMs;
  const think = unit.costLlmMs;
  const voice = unit.costTtsMs;
  const sound = unit.costToken2wavMs ?? 0;
  return { read, think, voice, sound, rest: Math.max(0, unit.costAllMs - read - think - voice - sound) };
}

/** @param {number} share */
const bounded = (share) => Math.min(1, Math.max(0, share));

/**
 * @param {UnitRecord} unit
 * @param {{chunkMs: number, maxKvTokens: number}} limits
 * @returns {UnitColumn}
 */
export function columnOf(unit, { chunkMs, maxKvTokens }) {
  const stagesMs = stagesOf(unit);
  const totalMs = STAGES.reduce((sum, stage) => sum + stagesMs[stage], 0);
  return {
    step: unit.step,
    kind: kindOf(unit),
    stagesMs,
    totalMs,
    wallMs: unit.wallClockMs,
    isLate: Math.max(totalMs, unit.wallClockMs) > chunkMs,
    isEndOfTurn: unit.isEndOfTurn,
    kvTokens: unit.kvTokens,
    kvShare: maxKvTokens > 0 ? bounded(unit.kvTokens / maxKvTokens) : 0,
    aheadMs: unit.aheadMs,
    aheadShare: bounded((unit.aheadMs ?? 0) / AHEAD_SCALE_MS),
    gapMs: unit.gapMs,
  };
}

/**
 * The last units as columns.
 *
 * @param {ReadonlyArray<UnitRecord>} units
 * @param {{chunkMs: number, maxKvTokens: number}} limits
 * @returns {UnitColumn[]}
 */
export function columnsOf(units, limits) {
  return units.slice(-COLUMNS_SHOWN).map((unit) => columnOf(unit, limits));
}

/**
 * How many ms the full height stands for.
 *
 * @param {UnitColumn[]} columns
 * @param {number} chunkMs
 */
export function heightMs(columns, chunkMs) {
  const highest = columns.reduce((most, column) => Math.max(most, column.totalMs), 0);
  return Math.min(MOST_BUDGETS * chunkMs, Math.max(chunkMs, highest)) * HEADROOM;
}
