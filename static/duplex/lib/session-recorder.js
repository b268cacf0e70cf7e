/** Records a call in the browser: user left, model right. Pure: the page provides the capture. */

import { toPcm16, wavHeader } from "../../shared/pcm.js";
import { CAPTURE_RATE_HZ } from "./capture-format.js";

/** @import { DuplexCall } from "./call-kinds.js" */
/** @import { Capture } from "./capture.js" */

const RECORDING_MAX_S = 1_800;
const RIGHT_CHUNK_SAMPLES = 4_000;
const MS_PER_S = 1_000;

/** Events: `full` when the bound is reached. */
export class SessionRecorder extends EventTarget {
  #tape = new StereoTape();
  #answer;
  #offCall = () => {};
  #startedAtMs = 0;
  #isRecording = false;

  constructor(/** @type {Capture} */ answer) {
    super();
    this.#answer = answer;
  }

  /** Records what goes to the model, and the audio of `answer`. @param {DuplexCall} call @param {AudioNode | null} answer */
  async start(call, answer) {
    this.#startedAtMs = performance.now();
    this.#isRecording = true;
    this.#offCall = call.on("chunk", ({ audio }) => this.#append("left", audio));
    if (answer === null) return;
    this.#answer.on("chunk", ({ audio }) => this.#append("right", audio));
    await this.#answer.listenTo(answer, RIGHT_CHUNK_SAMPLES);
    if (this.#isRecording) this.#answer.start();
    else this.#answer.close(); // the call ended meanwhile
  }

  #append(/** @type {"left" | "right"} */ side, /** @type {Float32Array} */ audio) {
    if (!this.#isRecording) return;
    this.#tape.append(side, audio, ((performance.now() - this.#startedAtMs) * CAPTURE_RATE_HZ) / MS_PER_S);
    if (this.#tape.lengthSamples < RECORDING_MAX_S * CAPTURE_RATE_HZ) return;
    this.#isRecording = false;
    void this.stop();
    this.dispatchEvent(new CustomEvent("full"));
  }

  /** Ends; the recording remains available. */
  async stop() {
    await this.#answer.stop();
    this.#isRecording = false;
    this.#offCall();
    this.#answer.close();
  }

  /** The WAV file; null if nothing was recorded. @returns {Blob | null} */
  encode() {
    return this.#tape.lengthSamples > 0 ? this.#tape.toWav() : null;
  }
}

// Two 16-bit channels on a common time line, written as a WAV file.

/** Lag behind the clock from which a channel counts as paused and is padded with silence. */
const MAX_LAG_SAMPLES = CAPTURE_RATE_HZ / 4;
const PIECE_SAMPLES = 10 * CAPTURE_RATE_HZ;

export class StereoTape {
  #lengths = { left: 0, right: 0 };
  /** Finished ones are blobs, which the browser may keep on disk. @type {(Int16Array<ArrayBuffer> | Blob)[]} */ #pieces = [];
  #sealedCount = 0;

  get lengthSamples() {
    return Math.max(this.#lengths.left, this.#lengths.right);
  }

  /**
   * Appends to a channel, after padding it if it was paused.
   * @param {"left" | "right"} side
   * @param {Float32Array} samples at 16 kHz
   * @param {number} endSample end position by the clock
   */
  append(side, samples, endSample) {
    const missing = Math.round(endSample - samples.length - this.#lengths[side]);
    const start = this.#lengths[side] + (missing > MAX_LAG_SAMPLES ? missing : 0);
    new Int16Array(toPcm16([samples]).buffer).forEach((sample, i) => {
      const at = (start + i) % PIECE_SAMPLES;
      const piece = (this.#pieces[Math.floor((start + i) / PIECE_SAMPLES)] ??= new Int16Array(2 * PIECE_SAMPLES));
      /** @type {Int16Array} */ (piece)[2 * at + (side === "left" ? 0 : 1)] = sample;
    });
    this.#lengths[side] = start + samples.length;
    const finishedCount = Math.floor(Math.min(this.#lengths.left, this.#lengths.right) / PIECE_SAMPLES);
    for (; this.#sealedCount < finishedCount; this.#sealedCount += 1) {
      this.#pieces[this.#sealedCount] = new Blob([this.#pieceAt(this.#sealedCount)]);
    }
  }

  #pieceAt(/** @type {number} */ index) {
    return this.#pieces[index] ?? new Int16Array(2 * PIECE_SAMPLES); // of silence only, if nothing was written there
  }

  /** @returns {Blob} a WAV file; the shorter channel ends in silence */
  toWav() {
    const pieces = Array.from({ length: Math.ceil(this.lengthSamples / PIECE_SAMPLES) }, (_, i) => this.#pieceAt(i));
    const header = wavHeader(this.lengthSamples, 2, CAPTURE_RATE_HZ);
    const whole = new Blob([header, ...pieces]);
    return whole.slice(0, header.length + 4 * this.lengthSamples, "audio/wav");
  }
}

// Formats of recordings with a picture, which the browser encodes.

export const BITRATES = [1_000_000, 2_000_000, 4_000_000, 8_000_000];

/** @typedef {{id: string, mimeType: string, extension: string, hasPicture: boolean}} Format */

/** In order of preference. @type {readonly Format[]} */
export const FORMATS = [
  { id: "webm-vp9", mimeType: "video/webm;codecs=vp9,opus", extension: "webm", hasPicture: true },
  { id: "webm-vp8", mimeType: "video/webm;codecs=vp8,opus", extension: "webm", hasPicture: true },
  { id: "webm-h264", mimeType: "video/webm;codecs=h264,opus", extension: "webm", hasPicture: true },
  { id: "webm", mimeType: "video/webm", extension: "webm", hasPicture: true },
  { id: "mp4", mimeType: "video/mp4", extension: "mp4", hasPicture: true },
  { id: "audio-webm", mimeType: "audio/webm", extension: "webm", hasPicture: false },
  { id: "audio-mp4", mimeType: "audio/mp4", extension: "m4a", hasPicture: false },
];

/** @param {(mimeType: string) => boolean} isSupported @returns {Format[]} in the order of preference */
export const supportedFormats = (isSupported) => FORMATS.filter(({ mimeType }) => isSupported(mimeType));

/**
 * The requested format if supported, else the first supported one; null: this browser cannot record.
 * @param {(mimeType: string) => boolean} isSupported
 * @param {string} [wishId]
 */
export function pickFormat(isSupported, wishId) {
  const possible = supportedFormats(isSupported);
  const wished = possible.find(({ id }) => id === wishId);
  return wished ?? possible.find(({ hasPicture }) => hasPicture) ?? possible[0] ?? null;
}

/** Whether the browser may write MP4 without audio. @param {Format} format @param {(mimeType: string) => boolean} isSupported */
export const mayLackSound = (format, isSupported) =>
  format.id === "mp4" && !isSupported("video/mp4;codecs=avc1.42E01E,mp4a.40.2");
