// @ts-check
/** What the user said or typed, as text: where it stands in a call, and which heard turn it belongs to. Pure. */

import { appendKept, TURNS_KEPT } from "./unit-log.js";

/** @typedef {import("./unit-log.js").UnitRecord} UnitRecord */
/** @typedef {import("./user-turns.js").UserTurn} UserTurn */

/**
 * @typedef {Object} Caption
 * @property {string} text
 * @property {number} startedAtMs on the session's clock
 * @property {number} lengthMs 0 if it was typed
 * @property {boolean} isTyped
 *
 * @typedef {Object} Said what the server tells of it
 * @property {string} type
 * @property {string} text
 * @property {number} start_ms in the sound that was sent
 * @property {number} [duration_ms]
 */

/** Speech that the server finds so much earlier or later than the page is the same, ms. */
const NEAR_MS = 700;

/**
 * @param {ReadonlyArray<Caption>} captions
 * @param {Said} said
 * @param {ReadonlyArray<UnitRecord>} units
 * @param {number} nowMs
 * @returns {ReadonlyArray<Caption>} the same without a text
 */
export function captioned(captions, said, units, nowMs) {
  const text = said.text.trim();
  if (!text) return captions;
  const isTyped = said.type !== "user_transcript";
  const lengthMs = said.duration_ms ?? 0;
  const startedAtMs = isTyped ? nowMs : (heardAtMs(units, said.start_ms) ?? nowMs - lengthMs);
  return appendKept(captions, { text, startedAtMs, lengthMs, isTyped }, TURNS_KEPT);
}

/**
 * When the page heard a moment of the sound that was sent: a unit arrives when its last sample was recorded.
 *
 * @param {ReadonlyArray<UnitRecord>} units
 * @param {number} positionMs
 */
function heardAtMs(units, positionMs) {
  const unit = units.find(({ heardMs }) => heardMs > positionMs);
  return unit ? unit.arrivalMs - unit.wallClockMs - (unit.heardMs - positionMs) : null;
}

/**
 * The user's turns with their words; words of which no turn was heard are turns of their own.
 *
 * @param {ReadonlyArray<UserTurn>} turns
 * @param {ReadonlyArray<Caption>} captions
 * @returns {ReadonlyArray<UserTurn>} the same without captions
 */
export function withCaptions(turns, captions) {
  if (captions.length === 0) return turns;
  /** @type {Map<UserTurn, string>} */
  const words = new Map();
  /** @type {UserTurn[]} */
  const others = [];
  for (const { text, startedAtMs, lengthMs, isTyped } of captions) {
    const isSame = (/** @type {UserTurn} */ turn) =>
      startedAtMs - NEAR_MS <= turn.startedAtMs + turn.lengthMs && turn.startedAtMs <= startedAtMs + lengthMs + NEAR_MS;
    const turn = isTyped ? undefined : turns.find(isSame);
    if (turn) words.set(turn, [words.get(turn), text].filter(Boolean).join(" "));
    else others.push({ startedAtMs, lengthMs, bars: [], isOpen: false, text });
  }
  return [...turns.map((turn) => (words.has(turn) ? { ...turn, text: words.get(turn) } : turn)), ...others];
}
