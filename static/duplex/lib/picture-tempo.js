// @ts-check
/**
 * When the next camera picture is taken, and how many really went out in a second. Pure.
 */

/** A picture is taken at this part of a unit, as of a file: what happened in it, and time to encode it. */
const INSTANT = 0.5;
const KEPT_MS = 10_000;
const MS_PER_S = 1_000;

/** One picture a unit. */
export class PictureTempo {
  #unitStartMs;
  #isTaken = false;
  #unitMs;

  /** @param {number} nowMs @param {number} [unitMs] */
  constructor(nowMs, unitMs = MS_PER_S) {
    this.#unitStartMs = nowMs;
    this.#unitMs = unitMs;
  }

  /** A chunk was complete: the next unit begins. @param {number} nowMs */
  beginUnit(nowMs) {
    this.#unitStartMs = nowMs;
    this.#isTaken = false;
  }

  /**
   * Whether to take a picture now; true once for each unit.
   * @param {number} nowMs
   */
  isDue(nowMs) {
    if (this.#isTaken || nowMs - this.#unitStartMs < INSTANT * this.#unitMs) return false;
    this.#isTaken = true;
    return true;
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
