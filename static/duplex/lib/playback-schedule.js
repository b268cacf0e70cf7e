/**
 * Start times of the answer's chunks: target delay, gaps, holds, bounds. Pure.
 * All times are seconds of the playback clock; the caller passes `now`.
 */

// Target delay of a turn's first chunk, so that later ones arrive in time. A gap or jitter raises it at once; it shrinks
// by 5 ms per second played without a gap, but never below the base delay or the jitter of the last minute. Changes
// take effect at the next turn.

const GAP_MARGIN_S = 0.04; // added to the delay beyond the gap itself, seconds
const JITTER_MARGIN_S = 0.03; // margin above the observed jitter
const SHRINK_PER_S = 0.005; // shrinking, seconds of delay per second played
const JITTER_MEMORY_S = 60; // how long a measured jitter counts, seconds, and how many are kept
const JITTER_MEMORY_CHUNKS = 256;
const RESTART_PART = 0.5; // share of the delay that a restart after a gap waits, within bounds in seconds
const MIN_RESTART_S = 0.04;
const MAX_RESTART_S = 0.1;

class PlaybackDelay {
  #baseS;
  #maxS;
  targetS;
  #cushionS = 0; // buffered audio at the start of the turn, including later shifts
  /** @type {{atS: number, usedS: number}[]} */ #jitter = [];

  constructor(/** @type {number} */ baseS, /** @type {number} */ maxS) {
    this.#baseS = baseS;
    this.#maxS = Math.max(maxS, baseS);
    this.targetS = baseS;
  }

  /** Delay of a restart after a gap, so that the same jitter does not cause another. */
  get restartWaitS() {
    return Math.min(MAX_RESTART_S, Math.max(MIN_RESTART_S, this.targetS * RESTART_PART));
  }

  /** The user's setting. @param {number} baseS */
  setBase(baseS) {
    this.#baseS = baseS;
    this.#maxS = Math.max(this.#maxS, baseS);
    this.targetS = baseS;
    this.#jitter.length = 0;
  }

  /** A turn begins. @param {number} cushionS until its first chunk sounds */
  beginTurn(cushionS) {
    this.#cushionS = cushionS;
  }

  /** The schedule was shifted. @param {number} shiftS */
  addShift(shiftS) {
    this.#cushionS += shiftS;
  }

  /** A chunk that continues the turn arrived. @param {number} aheadS buffered audio; below 0 if late @param {number} now */
  noteArrival(aheadS, now) {
    const jitter = this.#jitter;
    jitter.push({ atS: now, usedS: this.#cushionS - aheadS });
    while (jitter.length > JITTER_MEMORY_CHUNKS || jitter[0].atS < now - JITTER_MEMORY_S) jitter.shift();
  }

  /** It was in time. @param {number} durationS */
  notePlayed(durationS) {
    const worstS = this.#jitter.reduce((worst, { usedS }) => Math.max(worst, usedS), 0);
    const neededS = Math.max(this.#baseS, worstS + JITTER_MARGIN_S);
    const shrunkS = Math.max(neededS, this.targetS - durationS * SHRINK_PER_S);
    this.targetS = Math.min(this.#maxS, shrunkS);
  }

  /** It was too late. @param {number} gapS */
  noteGap(gapS) {
    this.targetS = Math.min(this.#maxS, this.targetS + gapS + GAP_MARGIN_S);
  }
}

const AUDIBLE_GAP_S = 0.01; // lateness from which a gap is audible, seconds
/**
 * @typedef {Object} ScheduleOptions
 * @property {number} [baseDelayS] delay of the first turn and minimum of all
 * @property {number} [maxDelayS] upper bound of the delay
 * @property {number} [maxAheadS] bound on queued sound
 * @property {number} [gridHz] start times lie on multiples of 1/gridHz; 0 for none
 */

/**
 * A chunk's place.
 * @typedef {Object} Placement
 * @property {number} id
 * @property {number} startS start time; while held, in the frozen time of the hold
 * @property {number} durationS
 */

/** Without a `placement` it was rejected, since the queue is full. @typedef {ReturnType<PlaybackSchedule["place"]>} Placed */

/**
 * Schedule of one player.
 *
 * - A turn's first chunk starts the target delay after its arrival; the following ones are seamless.
 * - Late chunk: a gap, counted beyond 10 ms, which raises the target delay (see above).
 *   The schedule restarts a little after `now`, so that the same jitter does not cause another gap.
 * - Bound: a chunk that would begin more than `maxAheadS` ahead is rejected (the newest is
 *   dropped, so that audio already scheduled stays intact).
 * - hold/release: time is frozen for queued audio; nothing is lost and no gap is counted.
 */
export class PlaybackSchedule {
  #delay;
  #maxAheadS;
  #gridHz;
  /** @type {Placement[]} in order of time; finished ones are dropped */ #entries = [];
  #nextS = 0;
  #nextId = 1;
  /** @type {"closed" | "opening" | "running"} */ #turn = "closed";
  /** @type {number | null} */ #heldAtS = null;
  turnCount = 0;
  gapCount = 0;
  totalShiftS = 0; // sum of all gaps, audible or not

  /** @param {ScheduleOptions} [options] */
  constructor({ baseDelayS = 0.2, maxDelayS = 1.5, maxAheadS = 120, gridHz = 0 } = {}) {
    this.#delay = new PlaybackDelay(baseDelayS, maxDelayS);
    this.#maxAheadS = maxAheadS;
    this.#gridHz = gridHz;
  }

  get targetDelayS() {
    return this.#delay.targetS;
  }

  get isHeld() {
    return this.#heldAtS !== null;
  }

  get isTurnOpen() {
    return this.#turn !== "closed";
  }

  /** Sets the base delay; takes effect at the next turn. @param {number} delayS */
  setBaseDelay(delayS) {
    this.#delay.setBase(delayS);
  }

  /** Marks the next chunk as the first of a turn: it waits the target delay and cannot be late. */
  beginTurn() {
    this.#turn = "opening";
    this.turnCount += 1;
  }

  /** Marks the end of the turn: queued audio plays out, and its end is not a gap. */
  endTurn() {
    this.#turn = "closed";
  }

  /** Schedules a chunk. @param {number} durationS @param {number} now */
  place(durationS, now) {
    const at = this.#heldAtS ?? now;
    this.#forgetFinished(at);
    if (this.#nextS - at > this.#maxAheadS) return { placement: null, gapS: 0, isCounted: false };
    if (this.#turn !== "running") return this.#enter(this.#startTurn(at), durationS, 0);
    const startS = this.#nextS;
    if (!this.isHeld) this.#delay.noteArrival(startS - at, at);
    if (startS >= at) {
      this.#delay.notePlayed(durationS);
      return this.#enter(startS, durationS, 0);
    }
    const waitS = at - startS > AUDIBLE_GAP_S ? this.#delay.restartWaitS : 0;
    const restartS = this.#toGrid(at + waitS);
    return this.#enter(restartS, durationS, restartS - startS);
  }

  #startTurn(/** @type {number} */ at) {
    this.#turn = "running";
    const startS = this.#toGrid(Math.max(at + this.#delay.targetS, this.#nextS));
    this.#delay.beginTurn(startS - at);
    return startS;
  }

  #enter(/** @type {number} */ startS, /** @type {number} */ durationS, /** @type {number} */ gapS) {
    const isCounted = gapS > AUDIBLE_GAP_S;
    const placement = { id: this.#nextId, startS, durationS };
    this.#nextId += 1;
    this.#entries.push(placement);
    this.#nextS = startS + durationS;
    this.totalShiftS += gapS;
    if (isCounted) {
      this.gapCount += 1;
      this.#delay.addShift(gapS);
      this.#delay.noteGap(gapS);
    }
    return { placement, gapS, isCounted }; // the unwanted silence before it, and whether it was audible and counted
  }

  #forgetFinished(/** @type {number} */ at) {
    while (this.#entries.length > 0 && this.#entries[0].startS + this.#entries[0].durationS <= at) {
      this.#entries.shift();
    }
  }

  /** @param {number} timeS @returns {number} the next multiple of the grid */
  #toGrid(timeS) {
    if (this.#gridHz === 0) return timeS;
    // Rounding may place a sum of multiples just off the grid; that must not cost a whole sample.
    return Math.ceil(timeS * this.#gridHz - 1e-3) / this.#gridHz;
  }

  /** Queued audio that has not been played yet. @param {number} now @returns {number} seconds */
  aheadS(now) {
    return Math.max(0, this.#nextS - (this.#heldAtS ?? now));
  }

  /** Whether audio is playing or held. @param {number} now */
  isPlaying(now) {
    this.#forgetFinished(this.#heldAtS ?? now);
    return this.#entries.length > 0;
  }

  /** Freezes queued audio; `release` continues where it stopped. @param {number} now */
  hold(now) {
    if (this.#heldAtS !== null) return;
    this.#forgetFinished(now);
    this.#heldAtS = now;
  }

  /**
   * @param {number} now
   * @returns {Placement[]} all queued chunks at their new times; one that began before the hold starts
   *   before `now` and is to be played from `now - startS` on
   */
  release(now) {
    if (this.#heldAtS === null) return [];
    const shiftS = this.#toGrid(Math.max(0, now - this.#heldAtS));
    this.#heldAtS = null;
    if (this.#entries.length === 0) return [];
    for (const entry of this.#entries) entry.startS += shiftS;
    this.#nextS += shiftS;
    this.#delay.addShift(shiftS);
    return this.#entries.map((entry) => ({ ...entry }));
  }

  /** @param {number} now @returns {number} seconds of audio that will not be played */
  flush(now) {
    const lostS = this.isPlaying(now) ? this.aheadS(now) : 0;
    this.#entries.length = 0;
    this.#heldAtS = null;
    this.#nextS = now;
    this.endTurn();
    return lostS;
  }
}
