/**
 * What the audio thread computes with: a streaming resampler, and the features of the speech gate.
 * Nothing is allocated after the constructors. Pure.
 */

const HALF_WIDTH_PERIODS = 48; // zero crossings of the sinc on each side, at the lower of the two rates
const KAISER_BETA = 8; // Kaiser window: side lobes at about -80 dB
const CUTOFF_PART = 0.948; // cut-off as a part of the lower Nyquist frequency: the transition ends before it
const MAX_PHASES = 4_096; // largest filter bank; no audio device has a ratio that needs more
const HISTORY_BLOCK_SAMPLES = 1_024;

/** @param {number} a @param {number} b @returns {number} */
const greatestDivisor = (a, b) => (b === 0 ? a : greatestDivisor(b, a % b));

/** Modified Bessel function of order zero, by its series. @param {number} x @returns {number} */
function besselI0(x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; term > sum * 1e-12; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

/**
 * @param {number} offset from its centre, input samples
 * @param {number} halfWidth input samples
 * @param {number} cutoff cycles per input sample
 */
function prototypeAt(offset, halfWidth, cutoff) {
  const part = offset / halfWidth;
  if (Math.abs(part) >= 1) return 0;
  const kaiser = besselI0(KAISER_BETA * Math.sqrt(1 - part * part)) / besselI0(KAISER_BETA);
  const angle = 2 * Math.PI * cutoff * offset;
  const sinc = offset === 0 ? 1 : Math.sin(angle) / angle;
  return 2 * cutoff * sinc * kaiser;
}

export class Resampler {
  #phaseCount;
  #step;
  #halfWidth;
  #tapCount;
  /** @type {Float32Array[]} one filter per phase, its gain at 0 Hz exactly 1 */ #bank;
  #history;
  #historyLength = 0;
  #phase = 0; // phase of the next output sample, in 1/phaseCount of an input sample after history[halfWidth - 1]
  #readAt = 0;
  #inputSamples = 0;
  #outputSamples = 0;

  /**
   * @param {number} fromHz whole number
   * @param {number} toHz whole number
   * @throws {RangeError} rates are not positive integers or their ratio is too complex
   */
  constructor(fromHz, toHz) {
    if (!Number.isInteger(fromHz) || !Number.isInteger(toHz) || fromHz < 1 || toHz < 1) {
      throw new RangeError("sample rates are whole positive numbers");
    }
    const divisor = greatestDivisor(fromHz, toHz);
    this.#phaseCount = toHz / divisor;
    this.#step = fromHz / divisor;
    if (this.#phaseCount > MAX_PHASES) {
      throw new RangeError(`no filter for ${fromHz} Hz to ${toHz} Hz`);
    }
    const scale = Math.max(1, fromHz / toHz);
    const cutoff = (CUTOFF_PART * 0.5) / scale;
    this.#halfWidth = Math.ceil(HALF_WIDTH_PERIODS * scale);
    this.#tapCount = 2 * this.#halfWidth;
    this.#bank = [];
    for (let phase = 0; phase < this.#phaseCount; phase += 1) {
      this.#bank.push(this.#phaseFilter(phase / this.#phaseCount, cutoff));
    }
    this.#history = new Float32Array(this.#tapCount + HISTORY_BLOCK_SAMPLES);
    this.reset();
  }

  /** @param {number} fraction of an input sample @param {number} cutoff cycles per input sample @returns {Float32Array} */
  #phaseFilter(fraction, cutoff) {
    const taps = new Float64Array(this.#tapCount);
    let sum = 0;
    for (let i = 0; i < taps.length; i += 1) {
      taps[i] = prototypeAt(i - (this.#halfWidth - 1) - fraction, this.#halfWidth, cutoff);
      sum += taps[i];
    }
    return Float32Array.from(taps, (tap) => tap / sum);
  }

  reset() {
    this.#history.fill(0);
    this.#historyLength = this.#halfWidth - 1; // aligns output sample 0 with input sample 0
    this.#phase = 0;
    this.#readAt = 0;
    this.#inputSamples = 0;
    this.#outputSamples = 0;
  }

  /** Required output size for an input. @param {number} inputLength @returns {number} samples */
  maxOutputSamples(inputLength) {
    return Math.ceil(((inputLength + this.#tapCount) * this.#phaseCount) / this.#step) + 1;
  }

  /** @param {Float32Array} input @param {Float32Array} output of at least `maxOutputSamples(count)` @param {number} [count] */
  process(input, output, count = input.length) {
    let taken = 0;
    let written = 0;
    while (taken < count) {
      this.#compact();
      const room = this.#history.length - this.#historyLength;
      const piece = Math.min(room, count - taken);
      for (let i = 0; i < piece; i += 1) this.#history[this.#historyLength + i] = input[taken + i];
      this.#historyLength += piece;
      taken += piece;
      written = this.#drain(output, written);
    }
    this.#inputSamples += count;
    this.#outputSamples += written;
    return written;
  }

  /**
   * Flushes the rest, as if zeros followed; the stream ends.
   * @param {Float32Array} output of at least `maxOutputSamples(0)`
   * @returns {number} samples written: all output together is ⌈input × to / from⌉ samples
   */
  flush(output) {
    const total = Math.ceil((this.#inputSamples * this.#phaseCount) / this.#step);
    const missing = total - this.#outputSamples;
    const zeros = new Float32Array(this.#tapCount);
    const tail = new Float32Array(this.maxOutputSamples(zeros.length));
    const written = Math.min(missing, this.process(zeros, tail));
    output.set(tail.subarray(0, written));
    this.reset();
    return written;
  }

  #compact() {
    if (this.#readAt === 0) return;
    this.#history.copyWithin(0, this.#readAt, this.#historyLength);
    this.#historyLength -= this.#readAt;
    this.#readAt = 0;
  }

  #drain(/** @type {Float32Array} */ output, /** @type {number} */ written) {
    const history = this.#history;
    while (this.#readAt + this.#tapCount <= this.#historyLength) {
      const taps = this.#bank[this.#phase];
      let sum = 0;
      for (let i = 0; i < taps.length; i += 1) sum += taps[i] * history[this.#readAt + i];
      output[written] = sum;
      written += 1;
      this.#phase += this.#step;
      const whole = Math.floor(this.#phase / this.#phaseCount);
      this.#phase -= whole * this.#phaseCount;
      this.#readAt += whole;
    }
    return written;
  }
}

// Features of the speech gate: level and level of the upper band of 10 ms frames. Open speech has much of its energy above
// 1 kHz, a hum ("mm-hm") almost none.

export const FRAME_MS = 10;
const MS_PER_S = 1_000;
const RUMBLE_HZ = 90; // removes rumble, mains hum and DC
const UPPER_BAND_HZ = 1_000;

/**
 * One frame of sound.
 * @typedef {Object} SpeechFrame
 * @property {number} rms of the frame without rumble, amplitude
 * @property {number} upperRms of the band above 1 kHz, amplitude
 */

/** A filter of second order, in transposed direct form II. */
export class Biquad {
  #b;
  #a;
  #z1 = 0;
  #z2 = 0;

  /** @param {readonly [number, number, number]} b @param {readonly [number, number]} a a1 and a2; all are divided by a0 */
  constructor(b, a) {
    this.#b = b;
    this.#a = a;
  }

  next(/** @type {number} */ x) {
    const y = this.#b[0] * x + this.#z1;
    this.#z1 = this.#b[1] * x - this.#a[0] * y + this.#z2;
    this.#z2 = this.#b[2] * x - this.#a[1] * y;
    return y;
  }
}

/** Butterworth high-pass. Source: R. Bristow-Johnson, Audio EQ Cookbook. @param {number} cutoffHz @param {number} rateHz */
function highPass(cutoffHz, rateHz) {
  const angle = (2 * Math.PI * cutoffHz) / rateHz;
  const alpha = Math.sin(angle) / Math.SQRT2;
  const a0 = 1 + alpha;
  const b0 = (1 + Math.cos(angle)) / 2 / a0;
  return new Biquad([b0, -2 * b0, b0], [(-2 * Math.cos(angle)) / a0, (1 - alpha) / a0]);
}

export class SpeechFeatures {
  frame = { type: "feature", rms: 0, upperRms: 0 }; // the last frame, as a message; overwritten by the next
  #rumbleFilter;
  #upperFilter;
  #frameSamples;
  #count = 0;
  #sum = 0;
  #upperSum = 0;

  constructor(/** @type {number} */ rateHz) {
    this.#frameSamples = Math.round((rateHz * FRAME_MS) / MS_PER_S);
    this.#rumbleFilter = highPass(RUMBLE_HZ, rateHz);
    this.#upperFilter = highPass(UPPER_BAND_HZ, rateHz);
  }

  /** @param {number} sample @returns {boolean} true when `frame` is new */
  push(sample) {
    const clean = this.#rumbleFilter.next(sample);
    const upper = this.#upperFilter.next(clean);
    this.#sum += clean * clean;
    this.#upperSum += upper * upper;
    this.#count += 1;
    if (this.#count < this.#frameSamples) return false;
    this.frame.rms = Math.sqrt(this.#sum / this.#count);
    this.frame.upperRms = Math.sqrt(this.#upperSum / this.#count);
    this.#count = 0;
    this.#sum = 0;
    this.#upperSum = 0;
    return true;
  }
}
