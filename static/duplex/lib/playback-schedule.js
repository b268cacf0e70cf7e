// @ts-check
/**
 * When each chunk of the answer starts: target delay, gaps, holds, bounds. Pure.
 * All times are seconds of the playback clock; the caller passes `now`.
 */

// How long the first chunk of a turn waits, so that the ones after it are not late. Raised at once by gap or jitter,
// shrinks by 5 ms per second played without a gap, never below the base delay nor below what the jitter of the last
// minute used up. Takes effect at the next turn.

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

class PlaybackDelay {
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

  /** A chunk that continues the turn came. @param {number} aheadS sound still in hand; below 0 when late @param {number} now */
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

/** A chunk later than this is a gap one may hear, seconds. */
const AUDIBLE_GAP_S = 0.01;
/**
 * @typedef {Object} ScheduleOptions
 * @property {number} [baseDelayS] delay of the first turn and least delay of all
 * @property {number} [maxDelayS] the delay never rises above
 * @property {number} [maxAheadS] bound on queued sound
 * @property {number} [gridHz] start times lie on multiples of 1/gridHz; 0 for none
 */

/**
 * A chunk's place.
 * @typedef {Object} Placement
 * @property {number} id
 * @property {number} startS when it starts; while held, in the standing time of the hold
 * @property {number} durationS
 */

/**
 * What `place` decided.
 * @typedef {Object} Placed
 * @property {Placement | null} placement null: refused, the queue is full
 * @property {number} gapS silence before it that should not be; 0 when in time
 * @property {boolean} isCounted the gap was audible and counted
 */

/**
 * The plan of one player.
 *
 * - A turn's first chunk starts the target delay after it came; the next ones follow without a seam.
 * - Late chunk: a gap, counted beyond 10 ms, which raises the target delay (see playback-delay.js).
 *   The schedule restarts a little after `now`, so that the same jitter does not tear it again.
 * - Bound: a chunk that would begin more than `maxAheadS` ahead is refused (the newest is
 *   dropped: what is already promised to the ear stays whole).
 * - hold/release: time stands still for what waits; nothing is lost and no gap is counted.
 */
export class PlaybackSchedule {
  #delay;
  #maxAheadS;
  #gridHz;
  /** @type {Placement[]} in order of time; finished ones are dropped */
  #entries = [];
  #nextS = 0;
  #nextId = 1;
  /** @type {"closed" | "opening" | "running"} */
  #turn = "closed";
  /** @type {number | null} */
  #heldAtS = null;
  #turnCount = 0;
  #gapCount = 0;
  #totalShiftS = 0;

  /** @param {ScheduleOptions} [options] */
  constructor({ baseDelayS = 0.2, maxDelayS = 1.5, maxAheadS = 120, gridHz = 0 } = {}) {
    this.#delay = new PlaybackDelay(baseDelayS, maxDelayS);
    this.#maxAheadS = maxAheadS;
    this.#gridHz = gridHz;
  }

  get targetDelayS() {
    return this.#delay.targetS;
  }

  get turnCount() {
    return this.#turnCount;
  }

  get gapCount() {
    return this.#gapCount;
  }

  /** Sum of all gaps, audible or not. */
  get totalShiftS() {
    return this.#totalShiftS;
  }

  get isHeld() {
    return this.#heldAtS !== null;
  }

  get isTurnOpen() {
    return this.#turn !== "closed";
  }

  /** The user's wish for the delay; takes effect at the next turn. @param {number} delayS */
  setBaseDelay(delayS) {
    this.#delay.setBase(delayS);
  }

  /** The next chunk is the first of a turn: it waits the target delay and cannot be late. */
  beginTurn() {
    this.#turn = "opening";
    this.#turnCount += 1;
  }

  /** No more chunks of this turn: what is queued plays out, its end is no gap. */
  endTurn() {
    this.#turn = "closed";
  }

  /** Give a chunk its place. @param {number} durationS @param {number} now @returns {Placed} */
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

  /** @param {number} at @returns {number} */
  #startTurn(at) {
    this.#turn = "running";
    const startS = this.#toGrid(Math.max(at + this.#delay.targetS, this.#nextS));
    this.#delay.beginTurn(startS - at);
    return startS;
  }

  /** @param {number} startS @param {number} durationS @param {number} gapS @returns {Placed} */
  #enter(startS, durationS, gapS) {
    const isCounted = gapS > AUDIBLE_GAP_S;
    const placement = { id: this.#nextId, startS, durationS };
    this.#nextId += 1;
    this.#entries.push(placement);
    this.#nextS = startS + durationS;
    this.#totalShiftS += gapS;
    if (isCounted) {
      this.#gapCount += 1;
      this.#delay.addShift(gapS);
      this.#delay.noteGap(gapS);
    }
    return { placement, gapS, isCounted };
  }

  /** @param {number} at */
  #forgetFinished(at) {
    while (this.#entries.length > 0 && this.#entries[0].startS + this.#entries[0].durationS <= at) {
      this.#entries.shift();
    }
  }

  /** @param {number} timeS @returns {number} the next multiple of the grid */
  #toGrid(timeS) {
    if (this.#gridHz === 0) return timeS;
    // A sum of multiples may miss its grid point by rounding; do not jump a whole sample for that.
    return Math.ceil(timeS * this.#gridHz - 1e-3) / this.#gridHz;
  }

  /** Queued sound that has not been heard yet. @param {number} now @returns {number} seconds */
  aheadS(now) {
    return Math.max(0, this.#nextS - (this.#heldAtS ?? now));
  }

  /** Is something sounding, or held back in the middle? @param {number} now */
  isPlaying(now) {
    this.#forgetFinished(this.#heldAtS ?? now);
    return this.#entries.length > 0;
  }

  /** Stand still: what is queued waits, `release` continues where it stopped. @param {number} now */
  hold(now) {
    if (this.#heldAtS !== null) return;
    this.#forgetFinished(now);
    this.#heldAtS = now;
  }

  /**
   * @param {number} now
   * @returns {Placement[]} all that waits, at its new time; one that began before the hold starts
   *   before `now`, and is to be played from `now - startS` into it
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

  /** @param {number} now @returns {number} seconds of sound that will not be heard */
  flush(now) {
    const lostS = this.isPlaying(now) ? this.aheadS(now) : 0;
    this.#entries.length = 0;
    this.#heldAtS = null;
    this.#nextS = now;
    this.endTurn();
    return lostS;
  }
}
