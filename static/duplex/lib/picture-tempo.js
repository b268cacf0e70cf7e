// @ts-check
/**
 * When the next camera picture is taken, and how many really went out in a second. Pure.
 */

import { LEVELS_PER_S } from "./capture-format.js";

/**
 * A picture is taken so long before its unit ends. It has to be there, and the model has to have looked
 * at it, when the sound is complete: up to 200 ms to encode it, 100 on the way, 100 of looking.
 */
export const AHEAD_MS = 400;
const KEPT_MS = 10_000;
const MS_PER_S = 1_000;
const DUE_LEVELS = Math.round(((MS_PER_S - AHEAD_MS) / MS_PER_S) * LEVELS_PER_S);

/** One picture a unit, counted in what was heard of it: a busy page hears late, but never too little. */
export class PictureTempo {
  #levels = 0;

  /** A chunk was complete: the next unit begins. */
  beginUnit() {
    this.#levels = 0;
  }

  /** Count a microphone level; return whether to take a picture now; true once a second, chunks or not. */
  countLevel() {
    this.#levels += 1;
    return this.#levels % LEVELS_PER_S === DUE_LEVELS;
  }
}

/** Counts what was sent. */
export class SentRate {
  /** @type {number[]} */
  #timesMs = [];
  #total = 0;

  /**
   * @param {number} total pictures sent since the call began
   * @param {number} nowMs
   */
  note(total, nowMs) {
    if (total < this.#total) this.clear();
    for (; this.#total < total; this.#total += 1) this.#timesMs.push(nowMs);
    this.#timesMs = this.#timesMs.filter((timeMs) => nowMs - timeMs <= KEPT_MS);
  }

  /** Pictures a second; 0 until there are two. */
  get rateHz() {
    const [first] = this.#timesMs;
    const last = this.#timesMs.at(-1) ?? 0;
    if (this.#timesMs.length < 2 || last === first) return 0;
    return ((this.#timesMs.length - 1) * MS_PER_S) / (last - first);
  }

  clear() {
    this.#timesMs = [];
    this.#total = 0;
  }
}
