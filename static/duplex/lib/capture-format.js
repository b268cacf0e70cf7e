/** Format of captured audio, and limits of its sources. Pure. */

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
