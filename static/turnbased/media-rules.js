// @ts-check
/**
 * Which files can be attached, and how big everything may be. Pure.
 */

import { LIMITS } from "../shared/protocol.js";

/**
 * @typedef {"audio" | "image" | "video"} MediaKind
 *
 * @typedef {Object} MediaLimits
 * @property {number} audioMaxS
 * @property {number} videoMaxS
 * @property {number} imageMaxBytes
 * @property {number} imageMaxSidePx
 * @property {number} imageMaxPixels
 * @property {number} videoMaxBytes
 * @property {number} requestMaxBytes everything that is sent with one question, as Base64
 * @property {number} itemsMax attachments of one message
 *
 * @typedef {Object} MediaFacts what is known of a file; the more the better
 * @property {MediaKind} kind
 * @property {number} sizeBytes of the file
 * @property {number} [durationS]
 * @property {number} [widthPx]
 * @property {number} [heightPx]
 *
 * @typedef {"unknown_kind" | "empty" | "unreadable" | "audio_long" | "video_long" | "video_big" | "image_big" |
 *   "image_pixels" | "request_big" | "too_many"} MediaProblem
 */

/** What a file of samples may weigh before it is decoded; longer than ten minutes of WAV. */
const AUDIO_FILE_MAX_BYTES = 256 * LIMITS.MIB;
/** Room for the words, names and brackets around the media of a request. */
const REQUEST_SPARE_BYTES = 64 * 1024;
const BASE64_CHARS = 4;
const BASE64_BYTES = 3;
const MOST_FRAMES = 64; // of one video, however long; source: docs/specification/model.md#4.7

/** @type {Readonly<Record<string, MediaKind>>} */
const KIND_BY_SUFFIX = Object.freeze({
  wav: "audio",
  mp3: "audio",
  m4a: "audio",
  aac: "audio",
  ogg: "audio",
  oga: "audio",
  opus: "audio",
  flac: "audio",
  png: "image",
  jpg: "image",
  jpeg: "image",
  webp: "image",
  gif: "image",
  bmp: "image",
  tif: "image",
  tiff: "image",
  avif: "image",
  heic: "image",
  heif: "image",
  svg: "image",
  mp4: "video",
  m4v: "video",
  mov: "video",
  webm: "video",
  mkv: "video",
  avi: "video",
});

/** What the server reads as it is; other pictures are drawn anew. */
export const IMAGE_TYPES = Object.freeze(["image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff"]);

/** For the `accept` of a file input. */
export const ACCEPT = "audio/*,image/*,video/*,.mkv,.m4a,.flac,.opus";

/**
 * @param {{name: string, type: string}} file
 * @returns {MediaKind | null} null for what is neither sound, picture nor video
 */
export function kindOfFile({ name, type }) {
  const [family] = type.split("/");
  if (family === "audio" || family === "image" || family === "video") return family;
  return KIND_BY_SUFFIX[name.split(".").at(-1)?.toLowerCase() ?? ""] ?? null;
}

/**
 * @param {Record<string, number> | undefined} limits of GET /api/frontend_defaults
 * @returns {MediaLimits}
 */
export function mediaLimits(limits = {}) {
  const requestMaxBytes = (limits.chat_message_bytes ?? LIMITS.CHAT_SOCKET_LIMIT_BYTES) - REQUEST_SPARE_BYTES;
  const fitsBytes = Math.floor((requestMaxBytes / BASE64_CHARS) * BASE64_BYTES);
  const audioMaxS = limits.chat_audio_max_s ?? LIMITS.CHAT_AUDIO_MAX_S;
  const bytesPerS = LIMITS.INPUT_SAMPLE_RATE_HZ * LIMITS.SAMPLE_BYTES;
  return {
    audioMaxS: Math.min(audioMaxS, Math.floor(fitsBytes / bytesPerS)),
    videoMaxS: audioMaxS,
    imageMaxBytes: Math.min(LIMITS.PICTURE_MAX_BYTES, fitsBytes),
    imageMaxSidePx: LIMITS.PICTURE_MAX_SIDE_PX,
    imageMaxPixels: LIMITS.PICTURE_MAX_PIXELS,
    videoMaxBytes: Math.min(LIMITS.VIDEO_MAX_BYTES, fitsBytes),
    requestMaxBytes,
    itemsMax: LIMITS.ITEMS_MAX - 1, // the text is one more
  };
}

/**
 * Says why a file cannot be sent.
 *
 * @param {MediaFacts} facts
 * @param {MediaLimits} limits
 * @returns {MediaProblem | null} null if it can
 */
export function mediaProblem(facts, limits) {
  const { kind, sizeBytes, durationS = 0, widthPx = 0, heightPx = 0 } = facts;
  if (sizeBytes === 0) return "empty";
  if (kind === "audio") {
    return durationS > limits.audioMaxS || sizeBytes > AUDIO_FILE_MAX_BYTES ? "audio_long" : null;
  }
  if (kind === "video") {
    if (sizeBytes > limits.videoMaxBytes) return "video_big";
    return durationS > limits.videoMaxS ? "video_long" : null;
  }
  if (sizeBytes > limits.imageMaxBytes) return "image_big";
  const isLarge = Math.max(widthPx, heightPx) > limits.imageMaxSidePx || widthPx * heightPx > limits.imageMaxPixels;
  return isLarge ? "image_pixels" : null;
}

/**
 * How many pictures of a video the model looks at.
 *
 * @param {number} durationS
 * @param {number} picturesPerS
 */
export function videoPictures(durationS, picturesPerS) {
  return Math.max(1, Math.min(MOST_FRAMES * picturesPerS, Math.floor(durationS * picturesPerS) + 1));
}

/**
 * Whether one more fits into what is sent with the next question.
 *
 * @param {number} sentChars Base64 of the conversation so far
 * @param {number} newChars
 * @param {MediaLimits} limits
 */
export function fitsRequest(sentChars, newChars, limits) {
  return sentChars + newChars <= limits.requestMaxBytes;
}
