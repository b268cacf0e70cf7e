// @ts-check
/** The form of captured sound, and how long sources may be. Pure. */

export const CAPTURE_RATE_HZ = 16_000;
export const PROCESSOR_NAME = "capture-processor";
export const LEVELS_PER_S = 20;
/** What a voice detector judges at once, samples. */
export const WINDOW_SAMPLES = 512;

// Limits of files as sources, for forms that do not need the sources themselves.

export const AUDIO_MAX_S = 300;
export const VIDEO_MAX_S = 120;
export const PADDING_MAX_S = 30;
/** What the user may add to the automatic gain of the mixer, either way. */
export const MAX_TRIM_DB = 12;
