// @ts-check
/**
 * How long the first chunk of a turn waits, so that the ones after it are not late. Pure.
 * Raised at once by gap or jitter, shrinks by 5 ms per second played without a gap, never below the
 * base delay nor below what the jitter of the last minute used up. Takes effect at the next turn.
 */

/** Added to the delay beyond the gap itself, seconds. */
const GAP_MARGIN_S = 0.04;
/** Safety kept above the jitter seen. */
const JITTER_MARGIN_S = 0.03;
/** Shrinking, seconds of delay per second played. */
const SHRINK_PER_S = 0.005;
/** How long a measured jitter counts, seconds, and how many are kept. */
const JITTER_MEMORY_S = 60;
const JITTER_MEMORY_CHUNKS = 256;
/** A restart after a gap waits this part of the delay, within bounds in seconds. */
const RESTART_PART = 0.5;
const MIN_RESTART_S = 0.04;
const MAX_RESTART_S = 0.1;

/** The adaptive target delay of one player. */
export class PlaybackDelay {
  #baseS;
  #maxS;
  #targetS;
  /** Sound in hand when the turn began, later shifts included. */
  #cushionS = 0;
  /** @type {{atS: number, usedS: number}[]} */
  #jitter = [];

  /** @param {number} baseS @param {number} maxS */
  constructor(baseS, maxS) {
    this.#baseS = baseS;
    this.#maxS = Math.max(maxS, baseS);
    this.#targetS = baseS;
  }

  get targetS() {
    return this.#targetS;
  }

  /** How long a restart after a gap waits, lest the same jitter tears it again. */
  get restartWaitS() {
    return Math.min(MAX_RESTART_S, Math.max(MIN_RESTART_S, this.#targetS * RESTART_PART));
  }

  /** The user's wish. @param {number} baseS */
  setBase(baseS) {
    this.#baseS = baseS;
    this.#maxS = Math.max(this.#maxS, baseS);
    this.#targetS = baseS;
    this.#jitter.length = 0;
  }

  /** A turn begins. @param {number} cushionS until its first chunk sounds */
  beginTurn(cushionS) {
    this.#cushionS = cushionS;
  }

  /** The plan moved back. @param {number} shiftS */
  addShift(shiftS) {
    this.#cushionS += shiftS;
  }

  /**
   * A chunk that continues the turn came.
   * @param {number} aheadS sound still in hand; below 0 when late
   * @param {number} now
   */
  noteArrival(aheadS, now) {
    const jitter = this.#jitter;
    jitter.push({ atS: now, usedS: this.#cushionS - aheadS });
    while (jitter.length > JITTER_MEMORY_CHUNKS || jitter[0].atS < now - JITTER_MEMORY_S) jitter.shift();
  }

  /** It was in time. @param {number} durationS */
  notePlayed(durationS) {
    const worstS = this.#jitter.reduce((worst, { usedS }) => Math.max(worst, usedS), 0);
    const neededS = Math.max(this.#baseS, worstS + JITTER_MARGIN_S);
    const shrunkS = Math.max(neededS, this.#targetS - durationS * SHRINK_PER_S);
    this.#targetS = Math.min(this.#maxS, shrunkS);
  }

  /** It was too late. @param {number} gapS */
  noteGap(gapS) {
    this.#targetS = Math.min(this.#maxS, this.#targetS + gapS + GAP_MARGIN_S);
  }
}
