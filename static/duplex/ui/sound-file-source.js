// @ts-check
/** A sound file as the user of a call, alone or together with the microphone. Device. */

import { CAPTURE_RATE_HZ } from "../lib/capture-format.js";
import { openFileSource } from "../lib/file-source.js";
import { openMicrophone } from "../lib/microphone.js";
import { MixerController } from "../lib/mixer-controller.js";

/** @import { LiveSource } from "../lib/duplex-types.js" */
/** @import { MicrophoneOptions } from "../lib/microphone.js" */

/**
 * @typedef {Object} SoundFileOptions
 * @property {AudioBuffer} sound
 * @property {boolean} hasMicrophone
 * @property {MicrophoneOptions} microphone
 * @property {number} paddingBeforeS
 * @property {number} paddingAfterS
 * @property {(progress: {elapsedS: number, totalS: number}) => void} onProgress
 */

/** @param {SoundFileOptions} options @returns {Promise<LiveSource>} */
export async function openSoundFile(options) {
  const { sound, hasMicrophone, paddingBeforeS, paddingAfterS, onProgress } = options;
  const context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ });
  const microphone = hasMicrophone ? await openMicrophone({ ...options.microphone, context }) : null;
  const mixer = new MixerController(context, { mode: microphone ? "both" : "file" });
  const source = await openFileSource({
    sound,
    context,
    mixer,
    paddingBeforeS,
    paddingAfterS,
    ...(microphone && { microphone: microphone.stream }),
  });
  source.addEventListener("progress", (event) => onProgress(/** @type {CustomEvent} */ (event).detail));
  microphone?.addEventListener("ended", (event) => {
    source.dispatchEvent(new CustomEvent("ended", { detail: /** @type {CustomEvent} */ (event).detail }));
  });
  const closeFile = source.close.bind(source);
  return Object.assign(source, {
    isMicrophone: hasMicrophone,
    async close() {
      await microphone?.close();
      await closeFile();
    },
  });
}
