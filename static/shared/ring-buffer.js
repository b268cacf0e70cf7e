// @ts-check
/**
 * A fixed-size queue of samples for the audio thread: allocates once, in the constructor.
 * Overflow rule: the oldest samples are dropped and counted. Pure.
 */
export class RingBuffer {
  /** @type {Float32Array} */
  #samples;
  #readAt = 0;
  #length = 0;
  #droppedSamples = 0;

  /** @param {number} capacitySamples at least 1 */
  constructor(capacitySamples) {
    if (!Number.isInteger(capacitySamples) || capacitySamples < 1) {
      throw new RangeError("a ring holds at least one sample");
    }
    this.#samples = new Float32Array(capacitySamples);
  }

  /** Samples waiting. */
  get lengthSamples() {
    return this.#length;
  }

  get capacitySamples() {
    return this.#samples.length;
  }

  /** Samples lost to overflow since the start; `clear` does not reset it. */
  get droppedSamples() {
    return this.#droppedSamples;
  }

  /**
   * Append the first `count` samples.
   * @param {Float32Array} source
   * @param {number} [count]
   */
  write(source, count = source.length) {
    const capacity = this.#samples.length;
    const skipped = Math.max(0, count - capacity);
    const kept = count - skipped;
    const overflow = Math.max(0, this.#length + kept - capacity);
    this.#readAt = (this.#readAt + overflow) % capacity;
    this.#length -= overflow;
    this.#droppedSamples += overflow + skipped;
    let writeAt = (this.#readAt + this.#length) % capacity;
    for (let i = skipped; i < count; i += 1) {
      this.#samples[writeAt] = source[i];
      writeAt += 1;
      if (writeAt === capacity) writeAt = 0;
    }
    this.#length += kept;
  }

  /**
   * Move the oldest samples into `target`.
   * @param {Float32Array} target
   * @param {number} [count] at most `target.length`
   * @returns {number} samples moved: fewer than asked when fewer were waiting
   */
  read(target, count = target.length) {
    const moved = Math.min(count, this.#length);
    const capacity = this.#samples.length;
    for (let i = 0; i < moved; i += 1) {
      target[i] = this.#samples[this.#readAt];
      this.#readAt += 1;
      if (this.#readAt === capacity) this.#readAt = 0;
    }
    this.#length -= moved;
    return moved;
  }

  /** Forget what is waiting. */
  clear() {
    this.#readAt = 0;
    this.#length = 0;
  }
}
