/**
 * Silero VAD (version 5 or 6) in the browser, as the voice detector of barge-in; loaded on demand. Pure.
 * Windows are evaluated in order, each with the preceding 64 samples and a recurrent state.
 * Bound: at most four windows are queued; a slow machine drops the newest and keeps the last probability.
 */
import { CAPTURE_RATE_HZ, WINDOW_SAMPLES } from "./capture-format.js";

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
  skippedCount = 0; // windows skipped because the machine was too slow

  /** @param {OnnxRuntime} ort @param {OnnxSession} session */
  constructor(ort, session) {
    this.#ort = ort;
    this.#session = session;
    this.#rate = new ort.Tensor("int64", BigInt64Array.of(BigInt(CAPTURE_RATE_HZ)), []);
    this.#state = new ort.Tensor("float32", new Float32Array(2 * 128), STATE_SHAPE);
  }

  /** @param {Float32Array} window 512 samples at 16 kHz */
  push(window) {
    if (this.#isClosed) return;
    if (this.#waiting.length >= MAX_WAITING) {
      this.skippedCount += 1;
      return;
    }
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

/** @param {() => Promise<{ort: OnnxRuntime, modelUrl: string}>} loadOnnxRuntime of shared/vendor.js */
export async function loadSileroDetector(loadOnnxRuntime) {
  const { ort, modelUrl } = await loadOnnxRuntime();
  const session = await ort.InferenceSession.create(modelUrl, { executionProviders: ["wasm"] });
  return new SileroDetector(ort, session);
}
