/**
 * The user's turns: time, duration, waveform, and text where known. Pure.
 *
 * For the transcript only; the speech gate decides on interruptions.
 */

import { appendKept, TURNS_KEPT } from "./session-state.js";

/** @import { UnitRecord } from "./full-duplex.js" */

const ABOVE_NOISE = 3; // levels this far above the noise floor count as speech
const LEAST_RMS = 0.005; // minimum level of speech, amplitude (-46 dB)
const FLOOR_RISE = 0.01; // the noise floor falls at once and rises by this share of the distance per level
const FIRST_FLOOR_RMS = 0.003;
const SHORTEST_MS = 250; // anything shorter is a click, ms
const PAUSE_MS = 900; // a pause longer than this ends a turn, ms
/** Bars of a finished turn's waveform. */
export const BARS = 32;
const USER_TURNS_KEPT = 60;

/**
 * @typedef {Object} UserTurn
 * @property {number} startedAtMs
 * @property {number} lengthMs without the pause that ended it
 * @property {number[]} bars 0 to 1
 * @property {boolean} isOpen still talking
 * @property {string} [text] what was said or typed, where it is known
 */

export class UserTurns {
  #floorRms = FIRST_FLOOR_RMS;
  /** @type {{startedAtMs: number, lastLoudMs: number, levels: number[]} | null} */ #current = null;
  /** @type {UserTurn[]} */ #done = [];
  version = 0; // incremented with every change, so that views redraw only then

  /** @returns {UserTurn[]} oldest first; the last may be open */
  get turns() {
    const current = this.#current;
    if (!current || current.lastLoudMs - current.startedAtMs < SHORTEST_MS) return this.#done;
    return [...this.#done, this.#turnOf(current, true)];
  }

  /** @param {number} rms @param {number} nowMs */
  push(rms, nowMs) {
    const isLoud = rms > Math.max(LEAST_RMS, this.#floorRms * ABOVE_NOISE);
    this.#floorRms = rms < this.#floorRms ? rms : this.#floorRms + (rms - this.#floorRms) * FLOOR_RISE;
    if (this.#current === null) {
      if (isLoud) this.#current = { startedAtMs: nowMs, lastLoudMs: nowMs, levels: [] };
      else return;
    }
    this.#current.levels.push(rms);
    this.version += 1;
    if (isLoud) {
      this.#current.lastLoudMs = nowMs;
    } else if (nowMs - this.#current.lastLoudMs > PAUSE_MS) this.end();
  }

  /** Ends the current turn, when the microphone is closed or the call is over. */
  end() {
    const current = this.#current;
    this.#current = null;
    if (!current || current.lastLoudMs - current.startedAtMs < SHORTEST_MS) return;
    this.#done = [...this.#done, this.#turnOf(current, false)].slice(-USER_TURNS_KEPT);
    this.version += 1;
  }

  clear() {
    this.#current = null;
    this.#done = [];
    this.version += 1;
  }

  /** @param {{startedAtMs: number, lastLoudMs: number, levels: number[]}} current @param {boolean} isOpen @returns {UserTurn} */
  #turnOf({ startedAtMs, lastLoudMs, levels }, isOpen) {
    return { startedAtMs, lengthMs: lastLoudMs - startedAtMs, bars: barsOf(levels), isOpen };
  }
}

/** Peak levels, normalised to 1. @param {number[]} levels @param {number} [count] @returns {number[]} */
export function barsOf(levels, count = BARS) {
  const loudest = levels.reduce((most, level) => Math.max(most, level), 0);
  if (loudest === 0) return [];
  const bars = Math.min(count, levels.length);
  return Array.from({ length: bars }, (_, index) => {
    const from = Math.floor((index * levels.length) / bars);
    const to = Math.max(from + 1, Math.floor(((index + 1) * levels.length) / bars));
    const peak = levels.slice(from, to).reduce((most, level) => Math.max(most, level), 0);
    return Math.sqrt(peak / loudest);
  });
}

// Captions of what the user said or typed, and their assignment to detected turns.

/**
 * @typedef {Object} Caption
 * @property {string} text
 * @property {number} startedAtMs on the session's clock
 * @property {number} lengthMs 0 if it was typed
 * @property {boolean} isTyped
 *
 * @typedef {Object} Said transcript as reported by the server
 * @property {string} type
 * @property {string} text
 * @property {number} start_ms position in the audio that was sent
 * @property {number} [duration_ms]
 */

const NEAR_MS = 700; // tolerance between the server's and the page's speech detection, ms

/**
 * @param {readonly Caption[]} captions
 * @param {Said} said
 * @param {readonly UnitRecord[]} units
 * @param {number} nowMs
 * @returns {readonly Caption[]} unchanged without text
 */
export function captioned(captions, said, units, nowMs) {
  const text = said.text.trim();
  if (!text) return captions;
  const isTyped = said.type !== "user_transcript";
  const lengthMs = said.duration_ms ?? 0;
  const startedAtMs = isTyped ? nowMs : (heardAtMs(units, said.start_ms) ?? nowMs - lengthMs);
  return appendKept(captions, { text, startedAtMs, lengthMs, isTyped }, TURNS_KEPT);
}

/** A unit is sent when its last sample has been recorded. @param {readonly UnitRecord[]} units @param {number} positionMs */
function heardAtMs(units, positionMs) {
  const unit = units.find(({ heardMs }) => heardMs > positionMs);
  return unit ? unit.arrivalMs - unit.wallClockMs - (unit.heardMs - positionMs) : null;
}

/**
 * The user's turns with captions; captions without a detected turn become turns of their own.
 * @param {readonly UserTurn[]} turns
 * @param {readonly Caption[]} captions
 * @returns {readonly UserTurn[]} unchanged without captions
 */
export function withCaptions(turns, captions) {
  if (captions.length === 0) return turns;
  /** @type {Map<UserTurn, string>} */ const words = new Map();
  /** @type {UserTurn[]} */ const others = [];
  for (const { text, startedAtMs, lengthMs, isTyped } of captions) {
    const isSame = (/** @type {UserTurn} */ turn) =>
      startedAtMs - NEAR_MS <= turn.startedAtMs + turn.lengthMs && turn.startedAtMs <= startedAtMs + lengthMs + NEAR_MS;
    const turn = isTyped ? undefined : turns.find(isSame);
    if (turn) words.set(turn, [words.get(turn), text].filter(Boolean).join(" "));
    else others.push({ startedAtMs, lengthMs, bars: [], isOpen: false, text });
  }
  return [...turns.map((turn) => (words.has(turn) ? { ...turn, text: words.get(turn) } : turn)), ...others];
}
