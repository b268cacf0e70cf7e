/**
 * Lets the user interrupt the answer by speaking: microphone frames → gate → player; speech-gate.js explains the steps. Pure.
 * Events (CustomEvent, `detail`): `state` {state} · `interrupt` when the barge-in is confirmed and the answer flushed.
 * Silero VAD (version 5 or 6) as its voice detector evaluates windows in order, each with the preceding 64 samples and a
 * recurrent state. Bound: four windows are queued; a slow machine drops the newest and keeps the last probability.
 */

import { SpeechGate } from "./speech-gate.js";
import { CAPTURE_RATE_HZ, WINDOW_SAMPLES } from "./capture-format.js";

/** @import { AudioPlayer } from "./audio-player.js" */
/** @import { GateAction } from "./speech-gate.js" */
/** @import { SpeechFrame } from "./resampler.js" */

const DUCK_DB = -9; // attenuation while a sound may still be a backchannel, dB

/**
 * "held": silent, but the answer may continue; "interrupted": silent until the next answer.
 * @typedef {"listening" | "speaking" | "ducked" | "held" | "interrupted"} BargeInState
 */

/** @typedef {Pick<AudioPlayer, "isPlaying" | "outputRms" | "duck" | "hold" | "release" | "flush">} Player */

/**
 * A source of speech frames: the microphone or a file.
 * @typedef {EventTarget & {setFeatures: (isOn: boolean) => void, setWindows: (isOn: boolean) => void}} FrameSource
 */

/** Tells speech from other sounds, 512 samples at a time.
 * @typedef {Object} VoiceDetector
 * @property {number} probability of speech in the last windows
 * @property {(window: Float32Array) => void} push
 */

export class BargeIn extends EventTarget {
  #player;
  #gate = new SpeechGate();
  #isEnabled = true;
  /** @type {FrameSource | null} */ #source = null;
  /** @type {VoiceDetector | null} */ #detector = null;
  /** @type {BargeInState} */ state = "listening";

  constructor(/** @type {Player} */ player) {
    super();
    this.#player = player;
  }

  /** Turning it off releases a held answer. @param {boolean} isEnabled */
  setEnabled(isEnabled) {
    if (this.#isEnabled && !isEnabled) this.#recover();
    this.#isEnabled = isEnabled;
    this.#gate.reset();
  }

  /** Consults a voice detector as well; null relies on the energy alone. @param {VoiceDetector | null} detector */
  setDetector(detector) {
    this.#detector = detector;
    this.#source?.setWindows(detector !== null);
  }

  /** Replaces the source of frames. @param {FrameSource | null} source */
  attach(source) {
    this.#source?.removeEventListener("feature", this.#onFrame);
    this.#source?.removeEventListener("window", this.#onWindow);
    this.#source?.setFeatures(false);
    this.#source?.setWindows(false);
    this.#source = source;
    source?.addEventListener("feature", this.#onFrame);
    source?.addEventListener("window", this.#onWindow);
    source?.setFeatures(true);
    source?.setWindows(this.#detector !== null);
  }

  /** Flushes the answer on behalf of the server or a button, without an `interrupt` event. */
  flush() {
    this.#player.flush();
    this.#player.duck(0);
    this.#gate.reset();
    this.#setState("interrupted");
  }

  close() {
    this.#recover();
    this.attach(null);
  }

  /** @type {(event: Event) => void} */ #onWindow = (event) => {
    this.#detector?.push(/** @type {CustomEvent<Float32Array>} */ (event).detail);
  };

  /** @type {(event: Event) => void} */ #onFrame = (event) => {
    const { detail } = /** @type {CustomEvent<SpeechFrame>} */ (event);
    const action = this.#gate.push(detail, {
      isPlaying: this.#player.isPlaying && this.#isEnabled,
      outputRms: this.#player.outputRms(),
      speechProbability: this.#detector?.probability,
    });
    this.#act(action);
    const { isPlaying } = this.#player; // after a flush it is not
    if (isPlaying && this.#gate.state === "idle") this.#setState("speaking");
    if (isPlaying || this.state === "interrupted") return;
    if (this.state === "ducked" || this.state === "held") this.#recover();
    this.#setState("listening");
  };

  #act(/** @type {GateAction} */ action) {
    if (action === "duck") {
      this.#player.duck(DUCK_DB);
      this.#setState("ducked");
    } else if (action === "hold") {
      this.#player.hold();
      this.#setState("held");
    } else if (action === "release") {
      this.#recover();
    } else if (action === "confirm") {
      this.flush();
      this.dispatchEvent(new Event("interrupt"));
    }
  }

  #recover() {
    this.#player.duck(0);
    this.#player.release();
  }

  #setState(/** @type {BargeInState} */ state) {
    if (state === this.state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state } }));
  }
}

const CONTEXT_SAMPLES = 64;
const STATE_SHAPE = [2, 1, 128];
const MAX_WAITING = 4;

/**
 * The parts of ONNX Runtime in use.
 * @typedef {{dispose?: () => void, data: unknown}} Tensor
 * @typedef {Object} OnnxSession
 * @property {(feeds: Record<string, Tensor>) => Promise<Record<string, Tensor>>} run
 * @property {() => Promise<void>} [release]
 * @typedef {Object} OnnxRuntime
 * @property {{create: (url: string, options?: object) => Promise<OnnxSession>}} InferenceSession
 * @property {new (type: "float32" | "int64", data: Float32Array | BigInt64Array, dims?: number[]) => Tensor} Tensor
 */

export class SileroDetector {
  probability = 0; // speech probability of the last window
  #ort;
  #session;
  #rate;
  /** @type {Tensor} */ #state;
  #context = new Float32Array(CONTEXT_SAMPLES);
  /** @type {Float32Array[]} */ #waiting = [];
  #isBusy = false;
  #isClosed = false;

  constructor(/** @type {OnnxRuntime} */ ort, /** @type {OnnxSession} */ session) {
    this.#ort = ort;
    this.#session = session;
    this.#rate = new ort.Tensor("int64", BigInt64Array.of(BigInt(CAPTURE_RATE_HZ)), []);
    this.#state = new ort.Tensor("float32", new Float32Array(2 * 128), STATE_SHAPE);
  }

  /** @param {Float32Array} window 512 samples at 16 kHz */
  push(window) {
    if (this.#isClosed) return;
    if (this.#waiting.length >= MAX_WAITING) return;
    this.#waiting.push(window);
    if (!this.#isBusy) this.#work().catch(() => this.close()); // a failed runtime blocks nothing
  }

  async #work() {
    this.#isBusy = true;
    for (let window = this.#waiting.shift(); window; window = this.#waiting.shift()) {
      const probability = await this.judge(window);
      if (!this.#isClosed) this.probability = probability;
    }
    this.#isBusy = false;
  }

  /** Evaluates one window; not to be mixed with `push`. @param {Float32Array} window @returns {Promise<number>} probability of speech */
  async judge(window) {
    const input = new Float32Array(CONTEXT_SAMPLES + WINDOW_SAMPLES);
    input.set(this.#context);
    input.set(window, CONTEXT_SAMPLES);
    this.#context = input.slice(-CONTEXT_SAMPLES);
    const outputs = await this.#session.run({
      input: new this.#ort.Tensor("float32", input, [1, input.length]),
      state: this.#state,
      sr: this.#rate,
    });
    this.#state = outputs.stateN;
    return Number(/** @type {Float32Array} */ (outputs.output.data)[0]);
  }

  /** Stops; from now on it reports speech, so that the energy gate decides alone. */
  async close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#waiting.length = 0;
    this.probability = 1;
    await this.#session.release?.();
  }
}

/** @param {() => Promise<{ort: OnnxRuntime, modelUrl: string}>} loadOnnxRuntime of shared/async.js */
export async function loadSileroDetector(loadOnnxRuntime) {
  const { ort, modelUrl } = await loadOnnxRuntime();
  const session = await ort.InferenceSession.create(modelUrl, { executionProviders: ["wasm"] });
  return new SileroDetector(ort, session);
}
