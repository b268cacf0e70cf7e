/** Records a call in the browser: user left, model right. Pure: the page provides the capture. */

import { toPcm16, wavHeader } from "../../shared/pcm.js";
import { CAPTURE_RATE_HZ } from "./capture-format.js";

/** @import { Capture, CaptureChunk } from "../../../types/devices.js" */
/** @import { createCapture } from "./capture.js" */

const RECORDING_MAX_S = 1_800;
const RIGHT_CHUNK_SAMPLES = 4_000;
const MS_PER_S = 1_000;

/** Events: `full` when the bound is reached. */
export class SessionRecorder extends EventTarget {
  #tape = new StereoTape();
  /** @type {Capture | null} */ #capture = null;
  /** @type {EventTarget | null} */ #source = null;
  /** @type {AudioNode | null} */ #answer = null;
  #startedAtMs = 0;
  #isRecording = false;
  #createCapture;
  #now;

  /** @param {typeof createCapture} capture @param {() => number} [now] clock, ms */
  constructor(capture, now = () => performance.now()) {
    super();
    this.#createCapture = capture;
    this.#now = now;
  }

  /** Records `chunk` events of `source` and the audio of `answer`. @param {EventTarget} source @param {AudioNode | null} answer */
  async start(source, answer) {
    this.#startedAtMs = this.#now();
    this.#isRecording = true;
    this.#source = source;
    source.addEventListener("chunk", this.#onUserChunk);
    if (answer === null) return;
    this.#answer = answer;
    this.#capture = await this.#createCapture(answer.context, RIGHT_CHUNK_SAMPLES, {
      onChunk: ({ audio }) => this.#append("right", audio),
    });
    answer.connect(this.#capture.node);
    this.#capture.start();
  }

  /** @type {(event: Event) => void} */ #onUserChunk = (event) => {
    const { detail } = /** @type {CustomEvent<CaptureChunk>} */ (event);
    this.#append("left", detail.audio);
  };

  #append(/** @type {"left" | "right"} */ side, /** @type {Float32Array} */ audio) {
    if (!this.#isRecording) return;
    this.#tape.append(side, audio, ((this.#now() - this.#startedAtMs) * CAPTURE_RATE_HZ) / MS_PER_S);
    if (this.#tape.lengthSamples < RECORDING_MAX_S * CAPTURE_RATE_HZ) return;
    this.stop();
    this.dispatchEvent(new CustomEvent("full"));
  }

  /** Ends; the recording remains available. */
  async stop() {
    if (this.#source === null) return;
    await this.#capture?.stop();
    this.#isRecording = false;
    this.#source?.removeEventListener("chunk", this.#onUserChunk);
    this.#source = null;
    if (this.#capture !== null) this.#answer?.disconnect(this.#capture.node);
    this.#capture?.close();
    this.#capture = null;
  }

  /** The WAV file; null if nothing was recorded. @returns {Blob | null} */
  encode() {
    return this.#tape.lengthSamples > 0 ? this.#tape.toWav() : null;
  }
}

// Two 16-bit channels on a common time line, written as a WAV file.

/** Lag behind the clock from which a channel counts as paused and is padded with silence. */
const MAX_LAG_SAMPLES = CAPTURE_RATE_HZ / 4;
const SEALED_SAMPLES = 10 * CAPTURE_RATE_HZ;

/** The part of one channel that is not finalised. */
class Channel {
  /** @type {Int16Array[]} */ #pieces = [];
  #takenSamples = 0;
  lengthSamples = 0;

  /** @param {Float32Array} samples @param {number} endSample end position by the clock */
  append(samples, endSample) {
    const missing = endSample - samples.length - this.lengthSamples;
    if (missing > MAX_LAG_SAMPLES) this.#add(new Int16Array(Math.round(missing)));
    this.#add(new Int16Array(toPcm16([samples]).buffer));
  }

  #add(/** @type {Int16Array} */ piece) {
    this.#pieces.push(piece);
    this.lengthSamples += piece.length;
  }

  /** Missing samples stay silent. @param {Int16Array} frames @param {number} offset */
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

export class StereoTape {
  #channels = { left: new Channel(), right: new Channel() };
  /** @type {Blob[]} */ #sealed = [];
  #sealedSamples = 0;

  get lengthSamples() {
    return Math.max(this.#channels.left.lengthSamples, this.#channels.right.lengthSamples);
  }

  /** Buffered samples of the longer channel. */
  get heldSamples() {
    return this.lengthSamples - this.#sealedSamples;
  }

  /**
   * Appends to a channel, after padding it if it was paused.
   * @param {"left" | "right"} side
   * @param {Float32Array} samples at 16 kHz
   * @param {number} endSample end position by the clock
   */
  append(side, samples, endSample) {
    this.#channels[side].append(samples, endSample);
    const { left, right } = this.#channels;
    while (Math.min(left.waitingSamples, right.waitingSamples) >= SEALED_SAMPLES) this.#seal(SEALED_SAMPLES);
  }

  #seal(/** @type {number} */ countSamples) {
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
