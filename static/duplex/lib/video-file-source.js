// @ts-check
/**
 * A video file as the user of a call: its picture, and the sound of file, microphone or both. Device.
 */

import { CAPTURE_RATE_HZ } from "./capture-format.js";
import { openFileSource } from "./file-source.js";
import { openMicrophone } from "./microphone.js";
import { MixerController } from "./mixer-controller.js";

/** @typedef {import("./mixer-controller.js").MixMode} MixMode */
/** @typedef {import("./file-source.js").FileSource} FileSource */

/**
 * What the mixer is set to.
 * @typedef {Object} MixSettings
 * @property {MixMode} mode
 * @property {number} trimFileDb
 * @property {number} trimMicrophoneDb
 * @property {number} microphoneLufs as measured before; -Infinity if it was not
 * @property {number} volume how loud the user hears the file, 0 to 1
 */

/**
 * @param {MixerController} mixer
 * @param {Omit<MixSettings, "mode">} settings
 */
export function setMixer(mixer, { trimFileDb, trimMicrophoneDb, microphoneLufs, volume }) {
  mixer.setTrim({ fileDb: trimFileDb, microphoneDb: trimMicrophoneDb });
  mixer.noteMicrophone(microphoneLufs);
  mixer.setMonitorVolume(volume);
}

/**
 * @typedef {Object} VideoSourceOptions
 * @property {AudioBuffer} sound
 * @property {HTMLVideoElement} video
 * @property {MixSettings} mix
 * @property {import("./microphone.js").MicrophoneOptions} microphone
 * @property {number} paddingBeforeS
 * @property {number} paddingAfterS
 */

/**
 * @param {VideoSourceOptions} options
 * @returns {Promise<FileSource & {isMicrophone: boolean}>}
 */
export async function openVideoSource({ mix, microphone: wish, ...options }) {
  const hasMicrophone = mix.mode !== "file";
  // In a context of its own: it keeps that awake, while a pause puts the file's to sleep.
  const microphone = hasMicrophone ? await openMicrophone(wish) : null;
  const context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ });
  const mixer = new MixerController(context, { mode: mix.mode });
  setMixer(mixer, mix);
  const source = await openFileSource({ ...options, context, mixer, ...(microphone && { microphone: microphone.stream }) });
  for (const type of ["silent", "audible", "ended"]) {
    microphone?.addEventListener(type, (event) => {
      source.dispatchEvent(new CustomEvent(type, { detail: /** @type {CustomEvent} */ (event).detail }));
    });
  }
  const closeFile = source.close.bind(source);
  return Object.assign(source, {
    isMicrophone: hasMicrophone,
    async close() {
      await microphone?.close();
      await closeFile();
    },
  });
}
