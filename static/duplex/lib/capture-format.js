/** Format of captured audio; limits of its sources, and the run of a file. Pure. */

export const CAPTURE_RATE_HZ = 16_000;
export const PROCESSOR_NAME = "capture-processor";
export const LEVELS_PER_S = 20;
/** Window of a voice detector, samples. */
export const WINDOW_SAMPLES = 512;

// Limits of file sources, here for forms that do not load the sources.

export const AUDIO_MAX_S = 300;
export const VIDEO_MAX_S = 120;
export const PADDING_MAX_S = 30;
/** Largest correction of the mixer's automatic gain, either way. */
export const MAX_TRIM_DB = 12;

/**
 * A file between its paddings, in chunks.
 * @param {{durationS: number, paddingBeforeS: number, paddingAfterS: number, chunkS: number}} options
 * @returns {{fileStartS: number, totalS: number, chunkCount: number}} totalS in whole chunks
 */
export function planRun({ durationS, paddingBeforeS, paddingAfterS, chunkS }) {
  const chunkCount = Math.ceil((paddingBeforeS + durationS + paddingAfterS) / chunkS - 1e-9);
  return { fileStartS: paddingBeforeS, totalS: chunkCount * chunkS, chunkCount };
}
