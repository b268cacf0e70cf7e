/** A whole recording through the resampler. */

import { Resampler } from "../../../static/duplex/lib/resampler.js";

/**
 * @param {Float32Array} samples mono
 * @param {number} fromHz
 * @param {number} toHz
 */
export function resample(samples, fromHz, toHz) {
  const resampler = new Resampler(fromHz, toHz);
  const output = new Float32Array(resampler.maxOutputSamples(samples.length));
  const written = resampler.process(samples, output);
  const tail = new Float32Array(resampler.maxOutputSamples(0));
  const tailLength = resampler.flush(tail);
  output.set(tail.subarray(0, tailLength), written);
  return output.slice(0, written + tailLength);
}
