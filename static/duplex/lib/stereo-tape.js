// @ts-check
/**
 * Two channels of 16-bit sound on one time line, made into a WAV file. Pure.
 *
 * Whatever both channels have passed goes into a Blob every ten seconds: the browser keeps those outside
 * of the script's memory, on disk if it likes, so that a long call does not fill it.
 */
import { toPcm16, wavHeader } from "../../shared/pcm.js";
import { CAPTURE_RATE_HZ } from "./capture-format.js";

/** A channel that fell so far behind the clock stood still: fill up with silence. */
const MAX_LAG_SAMPLES = CAPTURE_RATE_HZ / 4;
const SEALED_SAMPLES = 10 * CAPTURE_RATE_HZ;

/** What is not sealed yet of one channel. */
class Channel {
  /** @type {Int16Array[]} */
  #pieces = [];
  #takenSamples = 0;
  lengthSamples = 0;

  /** @param {Float32Array} samples @param {number} endSample where the clock says that they end */
  append(samples, endSample) {
    const missing = endSample - samples.length - this.lengthSamples;
    if (missing > MAX_LAG_SAMPLES) this.#add(new Int16Array(Math.round(missing)));
    this.#add(new Int16Array(toPcm16([samples]).buffer));
  }

  /** @param {Int16Array} piece */
  #add(piece) {
    this.#pieces.push(piece);
    this.lengthSamples += piece.length;
  }

  /**
   * Moves samples into every second place of `frames`; what is missing stays silent.
   * @param {Int16Array} frames @param {number} offset
   */
  moveInto(frames, offset) {
    let at = offset;
    while (at < frames.length && this.#pieces.length > 0) {
      const [piece] = this.#pieces;
      const count = Math.min(piece.length, Math.ceil((frames.length - at) / 2));
      for (let i = 0; i < count; i += 1) frames[at + 2 * i] = piece[i];
      at += 2 * count;
      if (count === piece.length) this.#pieces.shift();
      else this.#pieces[0] = piece.subarray(count);
    }
    this.#takenSamples += frames.length / 2;
  }

  get waitingSamples() {
    return this.lengthSamples - this.#takenSamples;
  }
}

/** A recording of two channels. */
export class StereoTape {
  #channels = { left: new Channel(), right: new Channel() };
  /** @type {Blob[]} */
  #sealed = [];
  #sealedSamples = 0;

  get lengthSamples() {
    return Math.max(this.#channels.left.lengthSamples, this.#channels.right.lengthSamples);
  }

  /** Samples in the script's memory, of the longer channel. */
  get heldSamples() {
    return this.lengthSamples - this.#sealedSamples;
  }

  /**
   * Appends to a channel; pads first where it stood still.
   * @param {"left" | "right"} side
   * @param {Float32Array} samples at 16 kHz
   * @param {number} endSample where the clock says that they end
   */
  append(side, samples, endSample) {
    this.#channels[side].append(samples, endSample);
    const { left, right } = this.#channels;
    while (Math.min(left.waitingSamples, right.waitingSamples) >= SEALED_SAMPLES) this.#seal(SEALED_SAMPLES);
  }

  /** @param {number} countSamples */
  #seal(countSamples) {
    const frames = new Int16Array(2 * countSamples);
    this.#channels.left.moveInto(frames, 0);
    this.#channels.right.moveInto(frames, 1);
    this.#sealed.push(new Blob([frames]));
    this.#sealedSamples += countSamples;
  }

  /** @returns {Blob} a WAV file; the shorter channel ends in silence */
  toWav() {
    if (this.heldSamples > 0) this.#seal(this.heldSamples);
    const header = wavHeader(this.#sealedSamples, 2, CAPTURE_RATE_HZ);
    return new Blob([header, ...this.#sealed], { type: "audio/wav" });
  }
}
