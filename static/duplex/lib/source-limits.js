// @ts-check
/**
 * Limits of files as sources, for forms that do not need the sources themselves. Pure.
 */

export const AUDIO_MAX_S = 300;
export const VIDEO_MAX_S = 120;
export const PADDING_MAX_S = 30;
/** What the user may add to the automatic gain of the mixer, either way. */
export const MAX_TRIM_DB = 12;
