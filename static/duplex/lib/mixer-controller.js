/** Mixes a file and the microphone at target loudness, with a preview before the call. Device. */

import { fromDb, rms } from "../../shared/pcm.js";
import { CAPTURE_RATE_HZ, MAX_TRIM_DB } from "./capture-format.js";
import { createCapture, openMicrophone } from "./capture.js";
import { gainToTargetDb, measureLufs } from "./measure.js";

/** @import { BenchOptions, MicrophoneOptions, MixSettings } from "../../../types/devices.js" */
/** @import { Microphone } from "./capture.js" */

const FILE_TARGET_LUFS = -33; // target loudness of a file next to the microphone, of the microphone, and of a file alone, LUFS
const MICROPHONE_TARGET_LUFS = -23;
const FILE_ALONE_TARGET_LUFS = -28;
const MEASURE_MS = 3_000;
const PREVIEW_MAX_S = 30;
const START_MONITOR_VOLUME = 0.5;
const METER_SAMPLES = 2_048;
const RAMP_S = 0.02;
const MS_PER_S = 1_000;

/** @typedef {"file" | "microphone" | "both"} MixMode */
/** @typedef {Record<"file" | "microphone" | "mix", number>} MixLevels amplitudes */

/** @param {MixMode} mode @param {{fileLufs: number, microphoneLufs: number}} measured -Infinity if unknown: no gain */
export function automaticGains(mode, { fileLufs, microphoneLufs }) {
  const fileTargetLufs = mode === "file" ? FILE_ALONE_TARGET_LUFS : FILE_TARGET_LUFS;
  return {
    fileDb: gainToTargetDb(fileLufs, fileTargetLufs),
    microphoneDb: gainToTargetDb(microphoneLufs, MICROPHONE_TARGET_LUFS),
  };
}

const boundTrim = (/** @type {number} */ trimDb) => Math.max(-MAX_TRIM_DB, Math.min(MAX_TRIM_DB, trimDb));

export class MixerController {
  /** Input of the file. @readonly */
  fileInput;
  /** Input of the microphone. @readonly */
  microphoneInput;
  /** The mix sent to the model. @readonly */
  mix;
  #context;
  #monitor;
  #meters;
  #meterSamples = new Float32Array(METER_SAMPLES);
  /** @type {MixMode} */ mode;
  #measured = { fileLufs: -Infinity, microphoneLufs: -Infinity };
  #trim = { fileDb: 0, microphoneDb: 0 };
  /** @type {Float32Array | null} */ #preview = null;
  /** @type {AudioBufferSourceNode | null} */ #previewSource = null;
  /** Ends the current recording. @type {() => Promise<void>} */
  #endRecording = async () => {};

  /** @param {AudioContext} context @param {{mode?: MixMode}} [options] */
  constructor(context, { mode = "file" } = {}) {
    this.#context = context;
    this.mode = mode;
    this.fileInput = new GainNode(context);
    this.microphoneInput = new GainNode(context);
    this.mix = new GainNode(context);
    this.#monitor = new GainNode(context, { gain: START_MONITOR_VOLUME });
    const meter = () => new AnalyserNode(context, { fftSize: METER_SAMPLES });
    this.#meters = { file: meter(), microphone: meter(), mix: meter() };
    this.fileInput.connect(this.mix);
    this.microphoneInput.connect(this.mix);
    this.fileInput.connect(this.#monitor).connect(context.destination);
    this.fileInput.connect(this.#meters.file);
    this.microphoneInput.connect(this.#meters.microphone);
    this.mix.connect(this.#meters.mix);
    this.#apply();
  }

  /** Levels now. @returns {MixLevels} */
  get levels() {
    const levelOf = (/** @type {AnalyserNode} */ meter) => {
      meter.getFloatTimeDomainData(this.#meterSamples);
      return rms(this.#meterSamples);
    };
    const { file, microphone, mix } = this.#meters;
    return { file: levelOf(file), microphone: levelOf(microphone), mix: levelOf(mix) };
  }

  /** @param {{fileDb?: number, microphoneDb?: number}} trim bounded to ±12 dB */
  setTrim({ fileDb = this.#trim.fileDb, microphoneDb = this.#trim.microphoneDb }) {
    this.#trim = { fileDb: boundTrim(fileDb), microphoneDb: boundTrim(microphoneDb) };
    this.#apply();
  }

  set(/** @type {Omit<MixSettings, "mode">} */ { trimFileDb, trimMicrophoneDb, microphoneLufs, volume }) {
    this.setTrim({ fileDb: trimFileDb, microphoneDb: trimMicrophoneDb });
    this.noteMicrophone(microphoneLufs);
    this.setMonitorVolume(volume);
  }

  /** Volume at which the user hears the file. @param {number} volume 0 to 1 */
  setMonitorVolume(volume) {
    this.#ramp(this.#monitor, volume);
  }

  /** @param {AudioBuffer} buffer @returns {number} LUFS */
  measureFile(buffer) {
    const channels = Array.from({ length: buffer.numberOfChannels }, (_, i) => buffer.getChannelData(i));
    this.#measured.fileLufs = measureLufs(channels, buffer.sampleRate);
    this.#apply();
    return this.#measured.fileLufs;
  }

  /** Sets a loudness measured earlier. @param {number} lufs */
  noteMicrophone(lufs) {
    this.#measured.microphoneLufs = lufs;
    this.#apply();
  }

  /**
   * Measures the microphone for three seconds while the user speaks.
   * @param {AudioNode} source the microphone before the mixer's gain
   * @returns {Promise<number>} LUFS; -Infinity if nothing was detected
   */
  async measureMicrophone(source) {
    const samples = await this.#record(source, MEASURE_MS);
    this.noteMicrophone(measureLufs([samples], CAPTURE_RATE_HZ));
    return this.#measured.microphoneLufs;
  }

  /** Records the mix for the preview. @param {number} [lengthS] at most 30 */
  async recordPreview(lengthS = 5) {
    this.#preview = await this.#record(this.mix, Math.min(lengthS, PREVIEW_MAX_S) * MS_PER_S);
    return this.#preview;
  }

  finishPreview() {
    void this.#endRecording();
  }

  /** Plays the preview at the monitor's volume; resolves at its end. */
  playPreview() {
    this.stopPreview();
    const samples = this.#preview;
    if (samples === null || samples.length === 0) return Promise.resolve();
    const buffer = new AudioBuffer({ length: samples.length, sampleRate: CAPTURE_RATE_HZ });
    buffer.copyToChannel(/** @type {Float32Array<ArrayBuffer>} */ (samples), 0);
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    this.#previewSource = source;
    source.connect(this.#monitor);
    source.start();
    return /** @type {Promise<void>} */ (
      new Promise((resolve) => source.addEventListener("ended", () => resolve(), { once: true }))
    );
  }

  stopPreview() {
    this.#previewSource?.stop();
    this.#previewSource = null;
  }

  close() {
    this.stopPreview();
    for (const node of [this.fileInput, this.microphoneInput, this.mix, this.#monitor]) node.disconnect();
  }

  async #record(/** @type {AudioNode} */ source, /** @type {number} */ lengthMs) {
    const wantedSamples = Math.round((CAPTURE_RATE_HZ * lengthMs) / MS_PER_S);
    /** @type {(samples: Float32Array) => void} */ let deliver = () => {};
    /** @type {Promise<Float32Array>} */ const recorded = new Promise((resolve) => {
      deliver = resolve;
    });
    const capture = await createCapture(this.#context, wantedSamples, { onChunk: ({ audio }) => deliver(audio) });
    source.connect(capture.node);
    this.#endRecording = async () => {
      await capture.stop();
      deliver(new Float32Array(0)); // nothing arrived yet, or nothing is left
    };
    capture.start();
    const samples = await recorded;
    this.#endRecording = async () => {};
    source.disconnect(capture.node);
    capture.close();
    return samples;
  }

  #apply() {
    const { fileDb, microphoneDb } = automaticGains(this.mode, this.#measured);
    this.#ramp(this.fileInput, this.mode === "microphone" ? 0 : fromDb(fileDb + this.#trim.fileDb));
    this.#ramp(this.microphoneInput, this.mode === "file" ? 0 : fromDb(microphoneDb + this.#trim.microphoneDb));
  }

  #ramp(/** @type {GainNode} */ node, /** @type {number} */ gain) {
    node.gain.setTargetAtTime(gain, this.#context.currentTime, RAMP_S);
  }
}

// The mixer outside a call: measuring the voice and previewing the mix.

/** Used once: open, measure or record and play, close. */
export class MixerBench {
  /** @readonly */
  mixer;
  #context;
  #sound;
  /** @type {Microphone | null} */ #microphone = null;
  /** @type {MediaStreamAudioSourceNode | null} */ #voice = null;
  /** @type {AudioBufferSourceNode | null} */ #file = null;

  constructor(/** @type {BenchOptions} */ { mix, sound }) {
    this.#context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ });
    this.mixer = new MixerController(this.#context, { mode: mix.mode });
    this.#sound = sound;
    if (sound) this.mixer.measureFile(sound);
    this.mixer.set(mix);
  }

  async openMicrophone(/** @type {MicrophoneOptions} */ wish) {
    this.#microphone = await openMicrophone(wish);
    this.#voice = this.#context.createMediaStreamSource(this.#microphone.stream);
    this.#voice.connect(this.mixer.microphoneInput);
  }

  /** Measures three seconds of the voice. @returns {Promise<number>} LUFS; -Infinity if nothing was detected */
  async measure() {
    return this.#voice ? this.mixer.measureMicrophone(this.#voice) : -Infinity;
  }

  /** Records the mix until `finishPreview` is called, at most 30 s. */
  async record() {
    if (this.#sound && this.mixer.mode !== "microphone") {
      this.#file = new AudioBufferSourceNode(this.#context, { buffer: this.#sound });
      this.#file.connect(this.mixer.fileInput);
      this.#file.start();
    }
    const samples = await this.mixer.recordPreview(PREVIEW_MAX_S);
    this.#file?.stop();
    await this.#microphone?.close();
    return samples.length / CAPTURE_RATE_HZ;
  }

  async close() {
    this.mixer.finishPreview();
    this.mixer.close();
    await this.#microphone?.close();
    if (this.#context.state !== "closed") await this.#context.close();
  }
}

/** Ready to use; the microphone is open where the mode needs it. @param {BenchOptions} options @returns {Promise<MixerBench>} */
export async function openMixerBench(options) {
  const bench = new MixerBench(options);
  try {
    if (options.mix.mode !== "file") await bench.openMicrophone(options.microphone);
  } catch (error) {
    await bench.close();
    throw error;
  }
  return bench;
}
