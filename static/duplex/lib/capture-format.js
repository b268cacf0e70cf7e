// @ts-check
/** What the capture worklet and the page that starts it agree on. Pure. */

/** Rate of every captured chunk, Hz. */
export const CAPTURE_RATE_HZ = 16_000;
/** Name under which the worklet registers. */
export const PROCESSOR_NAME = "capture-processor";
/** Levels reported each second. */
export const LEVELS_PER_S = 20;
/** What a voice detector judges at once, samples. */
export const WINDOW_SAMPLES = 512;
