// @ts-check
/** The mixer outside of a call: measure the voice, record a piece of the mix, listen to it. Device. */

import { CAPTURE_RATE_HZ } from "./capture-format.js";
import { openMicrophone } from "./microphone.js";
import { MixerController } from "./mixer-controller.js";
import { setMixer } from "./video-file.js";

/** @typedef {import("./video-file.js").MixSettings} MixSettings */
/** @typedef {import("./mixer-controller.js").MixLevels} MixLevels */

const PREVIEW_MAX_S = 30;

/**
 * @typedef {Object} BenchOptions
 * @property {MixSettings} mix
 * @property {AudioBuffer | null} sound of the file
 * @property {import("./microphone.js").MicrophoneOptions} microphone
 */

/** One use of it: open, measure or record and play, close. */
export class MixerBench {
  #context;
  #mixer;
  #sound;
  /** @type {import("./microphone.js").Microphone | null} */
  #microphone = null;
  /** @type {MediaStreamAudioSourceNode | null} */
  #voice = null;
  /** @type {AudioBufferSourceNode | null} */
  #file = null;

  /** @param {BenchOptions} options */
  constructor({ mix, sound }) {
    this.#context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ });
    this.#mixer = new MixerController(this.#context, { mode: mix.mode });
    this.#sound = sound;
    if (sound) this.#mixer.measureFile(sound);
    setMixer(this.#mixer, mix);
  }

  /** @param {import("./microphone.js").MicrophoneOptions} wish */
  async openMicrophone(wish) {
    this.#microphone = await openMicrophone(wish);
    this.#voice = this.#context.createMediaStreamSource(this.#microphone.stream);
    this.#voice.connect(this.#mixer.microphoneInput);
  }

  get levels() {
    return this.#mixer.levels;
  }

  /** Three seconds of the voice. @returns {Promise<number>} LUFS; -Infinity when nothing was heard */
  async measure() {
    return this.#voice ? this.#mixer.measureMicrophone(this.#voice) : -Infinity;
  }

  /** Record the mix until `finish` is called, 30 s at most. */
  async record() {
    if (this.#sound && this.#mixer.mode !== "microphone") {
      this.#file = new AudioBufferSourceNode(this.#context, { buffer: this.#sound });
      this.#file.connect(this.#mixer.fileInput);
      this.#file.start();
    }
    const samples = await this.#mixer.recordPreview(PREVIEW_MAX_S);
    this.#file?.stop();
    await this.#microphone?.close();
    return samples.length / CAPTURE_RATE_HZ;
  }

  finish() {
    this.#mixer.finishPreview();
  }

  /** Listen to it; resolves at its end. */
  play() {
    return this.#mixer.playPreview();
  }

  stopPlaying() {
    this.#mixer.stopPreview();
  }

  /** @param {MixSettings} mix */
  apply(mix) {
    setMixer(this.#mixer, mix);
  }

  async close() {
    this.#mixer.finishPreview();
    this.#mixer.close();
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
