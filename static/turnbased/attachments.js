/** Attachments: which files are taken, and what is said of them; and the texts of an answer's figures. Pure. */

import { base64ToBytes, base64ToFloats, encodeWav } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";
import { formatBytes, formatClock, formatNumber, MS_PER_S, t, tn } from "../shared/texts.js";
import { minutes, partBytes } from "./conversation.js";

/** @import { Figures } from "./conversation.js" */
/** @import { FileFacts, MediaLimits, MediaPart } from "../../types/chat.js" */

/** @typedef {"audio" | "image" | "video"} MediaKind */

const AUDIO_FILE_MAX_BYTES = 256 * LIMITS.MIB; // largest audio file that is decoded; more than ten minutes of WAV
const MOST_FRAMES = 64; // frames of one video, however long; source: docs/specification/model.md#4.7

/** For files without a type. @type {readonly (readonly [MediaKind, readonly string[]])[]} */ const SUFFIXES = [
  ["audio", ["wav", "mp3", "m4a", "aac", "ogg", "oga", "opus", "flac"]],
  ["image", ["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "svg"]],
  ["video", ["mp4", "m4v", "mov", "webm", "mkv", "avi"]],
];

/** Formats the server reads; other pictures are converted. */
export const IMAGE_TYPES = Object.freeze(["image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff"]);

/** @param {{name: string, type: string}} file @returns {MediaKind | null} null for other types */
export function kindOfFile({ name, type }) {
  const [family] = type.split("/");
  if (family === "audio" || family === "image" || family === "video") return family;
  const suffix = name.split(".").at(-1)?.toLowerCase() ?? "";
  return SUFFIXES.find(([, suffixes]) => suffixes.includes(suffix))?.[0] ?? null;
}

/** Code of a text `chat.file_CODE`; null if it can be sent. @param {FileFacts} facts @param {MediaLimits} limits */
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
export const videoPictures = (durationS, picturesPerS) =>
  Math.max(1, Math.min(MOST_FRAMES * picturesPerS, Math.floor(durationS * picturesPerS) + 1));

/** @param {MediaPart} part @returns {number} duration of the audio, seconds */
export const soundLengthS = (part) => partBytes(part) / LIMITS.SAMPLE_BYTES / LIMITS.INPUT_SAMPLE_RATE_HZ;

/** The part as a file. @param {MediaPart} part @returns {{bytes: Uint8Array<ArrayBuffer>, mimeType: string}} */
export function partFile(part) {
  if (part.type !== "audio") return { bytes: base64ToBytes(part.data), mimeType: part.mimeType };
  return { bytes: encodeWav(base64ToFloats(part.data), LIMITS.INPUT_SAMPLE_RATE_HZ), mimeType: "audio/wav" };
}

// Texts of attachments and of what cannot be attached.

/** Short description of an attachment. @param {MediaPart} part @param {number} picturesPerS */
export function partAbout(part, picturesPerS = 1) {
  const size = formatBytes(partBytes(part));
  if (part.type === "audio") return formatClock(soundLengthS(part));
  if (part.type === "image") return part.widthPx ? `${part.widthPx} × ${part.heightPx} · ${size}` : size;
  if (!part.durationS) return size;
  return `${formatClock(part.durationS)} · ${tn("chat.pictures", videoPictures(part.durationS, picturesPerS))} · ${size}`;
}

/** @typedef {{code: string, file: {name: string, type: string}}} TrayProblem */

/** States the limit and the next step. @param {TrayProblem} problem @param {MediaLimits} limits */
export function fileProblemWords({ code, file }, limits) {
  const kind = kindOfFile(file) ?? "audio";
  return t(`chat.file_${code}`, {
    name: file.name || t(`chat.kind_${kind}`),
    minutes: minutes(kind === "video" ? limits.videoMaxS : limits.audioMaxS),
    video: formatBytes(limits.videoMaxBytes),
    image: formatBytes(limits.imageMaxBytes),
    side: formatNumber(limits.imageMaxSidePx),
    mega: formatNumber(limits.imageMaxPixels / 1e6),
    request: formatBytes(limits.requestMaxBytes),
    count: formatNumber(limits.itemsMax),
  });
}

// Figures of an answer: a line, and the full list.

function seconds(/** @type {number} */ ms) {
  const digits = ms < 10 * MS_PER_S ? 2 : 1;
  return t("chat.seconds", { n: formatNumber(ms / MS_PER_S, digits) });
}

/** In chronological order. @param {Figures} figures */
export function figureRows({ transport, tokenStats: tokens, ...figures }) {
  const time = (/** @type {unknown} */ ms) => (typeof ms === "number" ? seconds(ms) : null);
  const count = (/** @type {unknown} */ n) => (typeof n === "number" ? formatNumber(n) : null);
  const [wait, estimate] = [time(figures.queueActualMs), time(figures.queueEstimateS && figures.queueEstimateS * MS_PER_S)];
  const inTokens = tokens && { cached: formatNumber(tokens.cached_tokens ?? 0), fresh: formatNumber(tokens.input_tokens ?? 0) };
  const texts = {
    mode: transport ? t(transport === "http" ? "chat.over_http" : "chat.over_socket") : null,
    queue: wait && estimate ? t("chat.estimated_actual", { estimate, actual: wait }) : wait,
    prefill: time(figures.prefillMs),
    ttft: time(figures.ttftMs),
    ttfa: time(figures.ttfaMs),
    generate: time(figures.generateMs),
    total: time(figures.totalMs),
    server: time(figures.serverElapsedMs || null),
    tokens_in: inTokens ? t("chat.cached_new", inTokens) : null,
    tokens_out: tokens ? count(tokens.generated_tokens ?? 0) : null,
    tokens_all: tokens ? count(tokens.total_tokens ?? 0) : null,
    chunks: count(figures.chunkCount),
  };
  return Object.entries(texts).flatMap(([key, value]) => (value === null ? [] : [{ key, name: t(`chat.figure_${key}`), value }]));
}

/** @param {Figures} figures @returns {string} the line under an answer */
export function figureLine({ totalMs, ttftMs, tokenStats }) {
  const parts = [];
  if (typeof ttftMs === "number") parts.push(t("chat.line_ttft", { time: seconds(ttftMs) }));
  if (typeof totalMs === "number") parts.push(t("chat.line_total", { time: seconds(totalMs) }));
  if (tokenStats) parts.push(t("chat.line_tokens", { n: formatNumber(tokenStats.generated_tokens ?? 0) }));
  return parts.join(" · ");
}
