/**
 * Features of the speech gate: level, level of the upper band and zero crossings of 10 ms frames.
 * Open speech has much of its energy above 1 kHz, a hum ("mm-hm") almost none.
 * Allocates nothing after the constructor. Pure.
 */

export const FRAME_MS = 10;
const MS_PER_S = 1_000;
const RUMBLE_HZ = 90; // removes rumble, mains hum and DC
const UPPER_BAND_HZ = 1_000;

/**
 * One frame of sound.
 * @typedef {Object} SpeechFrame
 * @property {number} rms of the frame without rumble, amplitude
 * @property {number} upperRms of the band above 1 kHz, amplitude
 * @property {number} zeroCrossings in the frame
 */

/** Butterworth high-pass of second order. Source: R. Bristow-Johnson, Audio EQ Cookbook. */
class HighPass {
  #b0;
  #a1;
  #a2;
  #z1 = 0;
  #z2 = 0;

  /** @param {number} cutoffHz @param {number} rateHz */
  constructor(cutoffHz, rateHz) {
    const angle = (2 * Math.PI * cutoffHz) / rateHz;
    const alpha = Math.sin(angle) / Math.SQRT2;
    const a0 = 1 + alpha;
    this.#b0 = (1 + Math.cos(angle)) / 2 / a0;
    this.#a1 = (-2 * Math.cos(angle)) / a0;
    this.#a2 = (1 - alpha) / a0;
  }

  /** @param {number} x @returns {number} */
  next(x) {
    const y = this.#b0 * x + this.#z1;
    this.#z1 = -2 * this.#b0 * x - this.#a1 * y + this.#z2;
    this.#z2 = this.#b0 * x - this.#a2 * y;
    return y;
  }
}

export class SpeechFeatures {
  frame = { type: "feature", rms: 0, upperRms: 0, zeroCrossings: 0 }; // the last frame, as a message; overwritten by the next
  #rumbleFilter;
  #upperFilter;
  #frameSamples;
  #count = 0;
  #sum = 0;
  #upperSum = 0;
  #crossings = 0;
  #wasPositive = false;

  /** @param {number} rateHz */
  constructor(rateHz) {
    this.#frameSamples = Math.round((rateHz * FRAME_MS) / MS_PER_S);
    this.#rumbleFilter = new HighPass(RUMBLE_HZ, rateHz);
    this.#upperFilter = new HighPass(UPPER_BAND_HZ, rateHz);
  }

  /** @param {number} sample @returns {boolean} true when `frame` is new */
  push(sample) {
    const clean = this.#rumbleFilter.next(sample);
    const upper = this.#upperFilter.next(clean);
    this.#sum += clean * clean;
    this.#upperSum += upper * upper;
    const isPositive = clean >= 0;
    if (isPositive !== this.#wasPositive) this.#crossings += 1;
    this.#wasPositive = isPositive;
    this.#count += 1;
    if (this.#count < this.#frameSamples) return false;
    this.frame.rms = Math.sqrt(this.#sum / this.#count);
    this.frame.upperRms = Math.sqrt(this.#upperSum / this.#count);
    this.frame.zeroCrossings = this.#crossings;
    this.#count = 0;
    this.#sum = 0;
    this.#upperSum = 0;
    this.#crossings = 0;
    return true;
  }
}
