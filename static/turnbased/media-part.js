// @ts-check
/**
 * Attachments as a conversation holds them: what goes over the wire, and what people want to know of it. Pure.
 */

import { base64ToBytes, base64ToFloats, encodeWav } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";

/**
 * @typedef {Object} MediaPart
 * @property {"audio" | "image" | "video"} type
 * @property {string} data Base64: of float32 samples at 16 kHz for sound, else of the file
 * @property {string} mimeType of the file `data` holds; "" for sound
 * @property {string} name for people; "" for what was recorded here
 * @property {number} [durationS]
 * @property {number} [widthPx]
 * @property {number} [heightPx]
 * @property {string} [poster] small JPEG of a video as Base64
 *
 * @typedef {Omit<MediaPart, "type" | "data">} MediaFacts
 * @typedef {import("./conversation.js").ContentItem} ContentItem
 * @typedef {import("./conversation.js").ChatMessage} ChatMessage
 */

const INPUT_RATE_HZ = LIMITS.INPUT_SAMPLE_RATE_HZ;
const BASE64_CHARS = 4;
const BASE64_BYTES = 3;

/**
 * A message's content: media first, then the text, as a person shows and then asks.
 *
 * @param {string} text
 * @param {readonly MediaPart[]} media
 * @param {number} picturesPerS taken from each second of a video
 * @returns {ContentItem[]}
 */
export function toItems(text, media, picturesPerS = 1) {
  const items = media.map(
    ({ type, data }) =>
      /** @type {ContentItem} */ (type === "video" ? { type, data, stack_frames: picturesPerS } : { type, data }),
  );
  return text ? [...items, { type: "text", text }] : items;
}

/**
 * What a message keeps beside its content, for people.
 *
 * @param {readonly MediaPart[]} media
 * @returns {MediaFacts[]}
 */
export function toFacts(media) {
  return media.map(({ data, type, ...facts }) => facts);
}

/**
 * The attachments of a message; files without a name where nothing was kept beside it.
 *
 * @param {ChatMessage} message
 * @returns {MediaPart[]}
 */
export function mediaOf({ items, extra }) {
  const kept = Array.isArray(extra.media) ? /** @type {Partial<MediaFacts>[]} */ (extra.media) : [];
  /** @type {MediaPart[]} */
  const media = [];
  for (const item of items) {
    if (item.type === "text") continue;
    const facts = { mimeType: "", name: "", ...kept[media.length] };
    media.push({ ...facts, type: item.type, data: item.data });
  }
  return media;
}

/**
 * Characters that media take in a request.
 *
 * @param {readonly MediaPart[]} media
 */
export function wireChars(media) {
  return media.reduce((sum, { data }) => sum + data.length, 0);
}

/** @param {MediaPart} part @returns {number} bytes of what is kept, for people */
export function partBytes({ data }) {
  return Math.floor((data.length / BASE64_CHARS) * BASE64_BYTES);
}

/** @param {MediaPart} part @returns {number} seconds of a sound */
export function soundLengthS(part) {
  return partBytes(part) / LIMITS.SAMPLE_BYTES / INPUT_RATE_HZ;
}

/**
 * The part as a file of its own.
 *
 * @param {MediaPart} part
 * @returns {{bytes: Uint8Array<ArrayBuffer>, mimeType: string}}
 */
export function partFile(part) {
  if (part.type !== "audio") return { bytes: base64ToBytes(part.data), mimeType: part.mimeType };
  return { bytes: encodeWav(base64ToFloats(part.data), INPUT_RATE_HZ), mimeType: "audio/wav" };
}

/** @type {Readonly<Record<string, string>>} */
const SUFFIX_BY_TYPE = Object.freeze({
  "audio/wav": "wav",
  "image/png": "png",
  "image/jpeg": "jpg",
  "image/webp": "webp",
  "image/gif": "gif",
  "image/bmp": "bmp",
  "image/tiff": "tif",
  "video/mp4": "mp4",
  "video/webm": "webm",
  "video/quicktime": "mov",
});

/** @param {string} mimeType */
export function suffixOf(mimeType) {
  return SUFFIX_BY_TYPE[mimeType] ?? "bin";
}
