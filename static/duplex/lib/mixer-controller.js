/** Mixes a file and the microphone at target loudness, with a preview before the call. Device. */

import { fromDb, rms } from "../../shared/pcm.js";
import { CAPTURE_RATE_HZ, MAX_TRIM_DB } from "./capture-format.js";
import { openMicrophone, recordNode } from "./capture.js";
import { gainToTargetDb, measureLufs } from "./measure.js";

/** @import { BenchOptions, MicrophoneOptions, MixSettings } from "../../../types/devices.js" */
/** @import { Capture, Microphone } from "./capture.js" */

const FILE_TARGET_LUFS = -33; // target loudness of a file next to the microphone, of the microphone, and of a file alone, LUFS
const MICROPHONE_TARGET_LUFS = -23;
const FILE_ALONE_TARGET_LUFS = -28;
const MEASURE_S = 3;
const PREVIEW_MAX_S = 30;
const START_MONITOR_VOLUME = 0.5;
const METER_SAMPLES = 2_048;
const RAMP_S = 0.02;

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

/** Loudness of a file. @param {AudioBuffer} sound @returns {number} LUFS; -Infinity where it is silent */
export function lufsOf(sound) {
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  return measureLufs(channels, sound.sampleRate);
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
  /** What the user hears of the file. @readonly */
  monitor;
  #meters;
  #meterSamples = new Float32Array(METER_SAMPLES);
  /** @type {MixMode} */ mode;
  #measured = { fileLufs: -Infinity, microphoneLufs: -Infinity };
  #trim = { fileDb: 0, microphoneDb: 0 };

  /** @param {AudioContext} context @param {{mode?: MixMode}} [options] */
  constructor(context, { mode = "file" } = {}) {
    this.#context = context;
    this.mode = mode;
    this.fileInput = new GainNode(context);
    this.microphoneInput = new GainNode(context);
    this.mix = new GainNode(context);
    this.monitor = new GainNode(context, { gain: START_MONITOR_VOLUME });
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
  /** The recording under way. @type {Capture | null} */ #recording = null;
  /** @type {Float32Array} */ #preview = new Float32Array(0);
  /** @type {AudioBufferSourceNode | null} */ #previewSource = null;

  /** @param {Omit<BenchOptions, "microphone">} options `open` makes one that is ready to use */
  constructor({ mix, sound }) {
    this.#context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ });
    this.mixer = new MixerController(this.#context, { mode: mix.mode });
    this.#sound = sound;
    if (sound) this.mixer.measureFile(sound);
    this.mixer.set(mix);
  }

  /** The microphone is open where the mode needs it. @param {BenchOptions} options */
  static async open({ microphone, ...options }) {
    const bench = new MixerBench(options);
    try {
      if (options.mix.mode !== "file") await bench.#openMicrophone(microphone);
    } catch (error) {
      await bench.close();
      throw error;
    }
    return bench;
  }

  async #openMicrophone(/** @type {MicrophoneOptions} */ wish) {
    this.#microphone = await openMicrophone(wish);
    this.#voice = this.#context.createMediaStreamSource(this.#microphone.stream);
    this.#voice.connect(this.mixer.microphoneInput);
  }

  /** Measures three seconds of the voice, before the mixer's gain. @returns {Promise<number>} LUFS; -Infinity if nothing was detected */
  async measure() {
    if (!this.#voice) return -Infinity;
    return measureLufs([await this.#record(this.#voice, MEASURE_S)], CAPTURE_RATE_HZ);
  }

  /** Records the mix until `finish` is called, at most 30 s. @returns {Promise<number>} seconds */
  async record() {
    const file = this.mixer.mode === "microphone" ? null : this.#sound;
    const player = file && this.#play(file, this.mixer.fileInput);
    this.#preview = await this.#record(this.mixer.mix, PREVIEW_MAX_S);
    player?.stop();
    await this.#microphone?.close();
    return this.#preview.length / CAPTURE_RATE_HZ;
  }

  async #record(/** @type {AudioNode} */ source, /** @type {number} */ lengthS) {
    const { audio } = await recordNode(source, lengthS * CAPTURE_RATE_HZ, (capture) => (this.#recording = capture));
    this.#recording = null;
    return audio;
  }

  /** Ends the recording under way. */
  finish() {
    void this.#recording?.stop();
  }

  #play(/** @type {AudioBuffer} */ buffer, /** @type {AudioNode} */ target) {
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(target);
    source.start();
    return source;
  }

  /** Plays the recording at the monitor's volume; resolves at its end. */
  async play() {
    this.stopPlaying();
    const samples = /** @type {Float32Array<ArrayBuffer>} */ (this.#preview);
    if (samples.length === 0) return;
    const buffer = new AudioBuffer({ length: samples.length, sampleRate: CAPTURE_RATE_HZ });
    buffer.copyToChannel(samples, 0);
    const source = this.#play(buffer, this.mixer.monitor);
    this.#previewSource = source;
    await new Promise((resolve) => source.addEventListener("ended", resolve, { once: true }));
  }

  stopPlaying() {
    this.#previewSource?.stop();
    this.#previewSource = null;
  }

  async close() {
    this.finish();
    this.stopPlaying();
    this.mixer.close();
    await this.#microphone?.close();
    if (this.#context.state !== "closed") await this.#context.close();
  }
}
