// @ts-check
/**
 * Three seconds of an open microphone. Device.
 */

import { CAPTURE_RATE_HZ } from "../duplex/lib/capture-format.js";

/** @typedef {import("../duplex/lib/microphone.js").Microphone} Microphone */

const CLIP_S = 3;

/**
 * @param {Microphone} microphone
 * @param {AbortSignal} signal ends it early
 * @returns {Promise<Float32Array>} at 16 kHz; shorter if it ended early
 */
export function takeClip(microphone, signal) {
  const samples = new Float32Array(CLIP_S * CAPTURE_RATE_HZ);
  let filled = 0;
  return new Promise((resolve) => {
    const ending = new AbortController();
    const finish = () => {
      ending.abort();
      void microphone.stop();
      resolve(samples.slice(0, filled));
    };
    /** @param {Event} event */
    const onChunk = (event) => {
      const { audio } = /** @type {CustomEvent<import("../duplex/lib/capture.js").CaptureChunk>} */ (event).detail;
      const part = audio.subarray(0, samples.length - filled);
      samples.set(part, filled);
      filled += part.length;
      microphone.recycle(audio);
      if (filled >= samples.length) finish();
    };
    microphone.addEventListener("chunk", onChunk, { signal: ending.signal });
    signal.addEventListener("abort", finish, { signal: ending.signal });
    microphone.start();
  });
}
