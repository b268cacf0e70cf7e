// @ts-check
/**
 * Records a session in the browser: stereo 16 kHz WAV, left the user, right the answer as it was heard
 * (holds, fades and flushes included, since it taps the player's output). Device.
 * Bound: 30 minutes, 115 MB outside of the script's memory; then recording ends with the event `full`.
 */
import { CAPTURE_RATE_HZ } from "./capture-format.js";
import { createCapture } from "./capture.js";
import { StereoTape } from "./stereo-tape.js";

const RECORDING_MAX_S = 1_800;
const RIGHT_CHUNK_SAMPLES = 4_000;
const MS_PER_S = 1_000;

/** Events: `full` when the bound is reached. */
export class SessionRecorder extends EventTarget {
  #tape = new StereoTape();
  /** @type {import("./capture.js").Capture | null} */
  #capture = null;
  /** @type {EventTarget | null} */
  #source = null;
  /** @type {AudioNode | null} */
  #answer = null;
  #startedAtMs = 0;
  #isRecording = false;
  #now;

  /** @param {() => number} [now] clock, ms */
  constructor(now = () => performance.now()) {
    super();
    this.#now = now;
  }

  get isRecording() {
    return this.#isRecording;
  }

  get lengthS() {
    return this.#tape.lengthSamples / CAPTURE_RATE_HZ;
  }

  /**
   * Begin. Takes `chunk` events of the microphone (or file), and what the player's output node gives.
   * @param {EventTarget} source
   * @param {AudioNode | null} answer
   */
  async start(source, answer) {
    this.#startedAtMs = this.#now();
    this.#isRecording = true;
    this.#source = source;
    source.addEventListener("chunk", this.#hearUser);
    if (answer === null) return;
    this.#answer = answer;
    this.#capture = await createCapture(answer.context, RIGHT_CHUNK_SAMPLES, {
      onChunk: ({ audio }) => this.#append("right", audio),
    });
    answer.connect(this.#capture.node);
    this.#capture.start();
  }

  /** @type {(event: Event) => void} */
  #hearUser = (event) => {
    const { detail } = /** @type {CustomEvent<import("./capture.js").CaptureChunk>} */ (event);
    this.#append("left", detail.audio);
  };

  /** @param {"left" | "right"} side @param {Float32Array} audio */
  #append(side, audio) {
    if (!this.#isRecording) return;
    this.#tape.append(side, audio, ((this.#now() - this.#startedAtMs) * CAPTURE_RATE_HZ) / MS_PER_S);
    if (this.lengthS < RECORDING_MAX_S) return;
    this.stop();
    this.dispatchEvent(new CustomEvent("full"));
  }

  /** End; what was recorded stays until the object goes. */
  async stop() {
    if (this.#source === null) return;
    await this.#capture?.stop();
    this.#isRecording = false;
    this.#source?.removeEventListener("chunk", this.#hearUser);
    this.#source = null;
    if (this.#capture !== null) this.#answer?.disconnect(this.#capture.node);
    this.#capture?.close();
    this.#capture = null;
  }

  /** The file; null when nothing was recorded. @returns {Blob | null} */
  encode() {
    return this.lengthS > 0 ? this.#tape.toWav() : null;
  }
}
