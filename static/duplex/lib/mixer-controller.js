/** Mixes a file and the microphone at target loudness. Device. */

import { fromDb, rms } from "../../shared/pcm.js";
import { MAX_TRIM_DB } from "./capture-format.js";
import { automaticGains, lufsOf } from "./measure.js";

/** @import { MixSettings } from "../../../types/devices.js" */

const START_MONITOR_VOLUME = 0.5;
const METER_SAMPLES = 2_048;
const RAMP_S = 0.02;

/** @typedef {"file" | "microphone" | "both"} MixMode */
/** @typedef {Record<"file" | "microphone" | "mix", number>} MixLevels amplitudes */

const boundTrim = (/** @type {number} */ trimDb) => Math.max(-MAX_TRIM_DB, Math.min(MAX_TRIM_DB, trimDb));

export class MixerController {
  #meters;
  #meterSamples = new Float32Array(METER_SAMPLES);
  #measured = { fileLufs: -Infinity, microphoneLufs: -Infinity };
  #trim = { fileDb: 0, microphoneDb: 0 };

  constructor(/** @type {AudioContext} */ context, /** @type {MixMode} */ mode) {
    this.mode = mode;
    this.fileInput = new GainNode(context);
    this.microphoneInput = new GainNode(context);
    this.mix = new GainNode(context); // what is sent to the model
    this.monitor = new GainNode(context, { gain: START_MONITOR_VOLUME }); // what the user hears of the file
    const meter = () => new AnalyserNode(context, { fftSize: METER_SAMPLES });
    this.#meters = { file: meter(), microphone: meter(), mix: meter() };
    this.fileInput.connect(this.mix);
    this.microphoneInput.connect(this.mix);
    this.fileInput.connect(this.monitor).connect(context.destination);
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

  /** @param {Partial<MixSettings>} change trims are bounded to ±12 dB */
  set({ trimFileDb, trimMicrophoneDb, microphoneLufs, volume }) {
    if (trimFileDb !== undefined) this.#trim.fileDb = boundTrim(trimFileDb);
    if (trimMicrophoneDb !== undefined) this.#trim.microphoneDb = boundTrim(trimMicrophoneDb);
    if (microphoneLufs !== undefined) this.#measured.microphoneLufs = microphoneLufs;
    if (volume !== undefined) this.#ramp(this.monitor, volume);
    this.#apply();
  }

  measureFile(/** @type {AudioBuffer} */ sound) {
    this.#measured.fileLufs = lufsOf(sound);
    this.#apply();
  }

  close() {
    for (const node of [this.fileInput, this.microphoneInput, this.mix, this.monitor]) node.disconnect();
  }

  #apply() {
    const { fileDb, microphoneDb } = automaticGains(this.mode, this.#measured);
    this.#ramp(this.fileInput, this.mode === "microphone" ? 0 : fromDb(fileDb + this.#trim.fileDb));
    this.#ramp(this.microphoneInput, this.mode === "file" ? 0 : fromDb(microphoneDb + this.#trim.microphoneDb));
  }

  #ramp(/** @type {GainNode} */ node, /** @type {number} */ gain) {
    node.gain.setTargetAtTime(gain, node.context.currentTime, RAMP_S);
  }
}
