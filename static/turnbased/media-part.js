/** Attachments: content, limits, storage. Pure. */

import { base64ToBytes, base64ToFloats, encodeWav } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";
import { formatBytes, formatNumber } from "../shared/formats.js";
import { t } from "../shared/texts.js";

/** @import { FileFacts, MediaLimits, MediaPart } from "../../types/chat.js" */

/**
 * @typedef {Omit<MediaPart, "type" | "data">} MediaFacts
 * @typedef {import("./conversation.js").ContentItem} ContentItem
 * @typedef {import("../../types/chat.js").ChatMessage} ChatMessage
 */

const INPUT_RATE_HZ = LIMITS.INPUT_SAMPLE_RATE_HZ;
const BASE64_CHARS = 4;
const BASE64_BYTES = 3;

/**
 * A message's content: media first, then the text, as in showing something and then asking.
 * @param {string} text
 * @param {readonly MediaPart[]} media
 * @param {number} picturesPerS frames per second of a video
 * @returns {ContentItem[]}
 */
export function toItems(text, media, picturesPerS = 1) {
  const items = media.map(
    ({ type, data }) =>
      /** @type {ContentItem} */ (type === "video" ? { type, data, stack_frames: picturesPerS } : { type, data }),
  );
  return text ? [...items, { type: "text", text }] : items;
}

/** Display data stored with a message. @param {readonly MediaPart[]} media @returns {MediaFacts[]} */
export function toFacts(media) {
  return media.map(({ data, type, ...facts }) => facts);
}

/** @param {ChatMessage} message @returns {MediaPart[]} */
export function mediaOf({ items, extra }) {
  const kept = Array.isArray(extra.media) ? /** @type {Partial<MediaFacts>[]} */ (extra.media) : [];
  /** @type {MediaPart[]} */ const media = [];
  for (const item of items) {
    if (item.type === "text") continue;
    const facts = { mimeType: "", name: "", ...kept[media.length] };
    media.push({ ...facts, type: item.type, data: item.data });
  }
  return media;
}

/** Size of media in a request, characters. @param {readonly MediaPart[]} media */
export function wireChars(media) {
  return media.reduce((sum, { data }) => sum + data.length, 0);
}

/** @param {MediaPart} part @returns {number} bytes size of the stored data */
export function partBytes({ data }) {
  return Math.floor((data.length / BASE64_CHARS) * BASE64_BYTES);
}

/** @param {MediaPart} part @returns {number} duration of the audio, seconds */
export function soundLengthS(part) {
  return partBytes(part) / LIMITS.SAMPLE_BYTES / INPUT_RATE_HZ;
}

/** The part as a file. @param {MediaPart} part @returns {{bytes: Uint8Array<ArrayBuffer>, mimeType: string}} */
export function partFile(part) {
  if (part.type !== "audio") return { bytes: base64ToBytes(part.data), mimeType: part.mimeType };
  return { bytes: encodeWav(base64ToFloats(part.data), INPUT_RATE_HZ), mimeType: "audio/wav" };
}

// Limits of attachments.

/**
 * @typedef {"audio" | "image" | "video"} MediaKind
 *
 * @typedef {"unknown_kind" | "empty" | "unreadable" | "audio_long" | "video_long" | "video_big"} MediaProblemOfKind
 * @typedef {MediaProblemOfKind | "image_big" | "image_pixels" | "request_big" | "too_many"} MediaProblem
 */

const AUDIO_FILE_MAX_BYTES = 256 * LIMITS.MIB; // largest audio file that is decoded; more than ten minutes of WAV
const REQUEST_SPARE_BYTES = 64 * 1024; // allowance for text and JSON syntax of a request
const MOST_FRAMES = 64; // frames of one video, however long; source: docs/specification/model.md#4.7

/** For files without a type. @type {readonly (readonly [MediaKind, readonly string[]])[]} */ const SUFFIXES = [
  ["audio", ["wav", "mp3", "m4a", "aac", "ogg", "oga", "opus", "flac"]],
  ["image", ["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "svg"]],
  ["video", ["mp4", "m4v", "mov", "webm", "mkv", "avi"]],
];

/** Formats the server reads; other pictures are converted. */
export const IMAGE_TYPES = Object.freeze(["image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff"]);

/** For the `accept` of a file input. */
export const ACCEPT = "audio/*,image/*,video/*,.mkv,.m4a,.flac,.opus";

/** @param {{name: string, type: string}} file @returns {MediaKind | null} null for other types */
export function kindOfFile({ name, type }) {
  const [family] = type.split("/");
  if (family === "audio" || family === "image" || family === "video") return family;
  const suffix = name.split(".").at(-1)?.toLowerCase() ?? "";
  return SUFFIXES.find(([, suffixes]) => suffixes.includes(suffix))?.[0] ?? null;
}

/** @param {Record<string, number> | undefined} limits of GET /api/frontend_defaults @returns {MediaLimits} */
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

/** @param {FileFacts} facts @param {MediaLimits} limits @returns {MediaProblem | null} null if it can be sent */
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

/** Number of frames of a video that the model sees. @param {number} durationS @param {number} picturesPerS */
export function videoPictures(durationS, picturesPerS) {
  return Math.max(1, Math.min(MOST_FRAMES * picturesPerS, Math.floor(durationS * picturesPerS) + 1));
}

/** @param {number} sentChars Base64 of the conversation so far @param {number} newChars @param {MediaLimits} limits */
export function fitsRequest(sentChars, newChars, limits) {
  return sentChars + newChars <= limits.requestMaxBytes;
}

// Texts of limits and violations.

const S_PER_MINUTE = 60;

/** @param {number} seconds */
export function minutes(seconds) {
  return formatNumber(seconds / S_PER_MINUTE, seconds % S_PER_MINUTE === 0 ? 0 : 1);
}

/** The limits in one line. @param {MediaLimits} limits */
export function limitWords(limits) {
  return t("chat.limits", {
    minutes: minutes(limits.audioMaxS),
    image: formatBytes(limits.imageMaxBytes),
    video: formatBytes(limits.videoMaxBytes),
    request: formatBytes(limits.requestMaxBytes),
  });
}
