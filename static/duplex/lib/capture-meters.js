// @ts-check
/**
 * What the capture worklet measures on the way: levels and windows, each as a message used again and
 * again (a port copies what it is given). Allocates nothing after the constructor. Pure.
 */
import { CAPTURE_RATE_HZ, LEVELS_PER_S, WINDOW_SAMPLES } from "./capture-format.js";

const LEVEL_SAMPLES = CAPTURE_RATE_HZ / LEVELS_PER_S;

/** Level of each 50 ms. */
export class LevelMeter {
  message = { type: "level", rms: 0, peak: 0, isSilent: true };
  #count = 0;
  #sum = 0;
  #peak = 0;

  /** @param {number} sample @returns {boolean} true when `message` is new */
  push(sample) {
    this.#sum += sample * sample;
    this.#peak = Math.max(this.#peak, Math.abs(sample));
    this.#count += 1;
    if (this.#count < LEVEL_SAMPLES) return false;
    this.message.rms = Math.sqrt(this.#sum / this.#count);
    this.message.peak = this.#peak;
    this.message.isSilent = this.#peak === 0;
    this.#count = 0;
    this.#sum = 0;
    this.#peak = 0;
    return true;
  }
}

/** Windows of 512 samples, for a voice detector. */
export class WindowCutter {
  message = { type: "window", audio: new Float32Array(WINDOW_SAMPLES) };
  #length = 0;

  /** @param {number} sample @returns {boolean} true when `message` is new */
  push(sample) {
    this.message.audio[this.#length] = sample;
    this.#length = (this.#length + 1) % WINDOW_SAMPLES;
    return this.#length === 0;
  }
}
