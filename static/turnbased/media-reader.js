// @ts-check
/**
 * Makes attachments of files: reads, checks, decodes sound, redraws pictures the server cannot read. Device.
 */

import { decodeSound } from "../shared/decode-sound.js";
import { floatsToBase64 } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";
import { IMAGE_TYPES, kindOfFile, mediaProblem } from "./media-rules.js";

/** @typedef {import("./media-part.js").MediaPart} MediaPart */
/** @typedef {import("./media-rules.js").MediaKind} MediaKind */
/** @typedef {import("./media-rules.js").MediaLimits} MediaLimits */
/** @typedef {import("./media-rules.js").MediaProblem} MediaProblem */

/**
 * @typedef {{durationS: number, widthPx: number, heightPx: number, poster: string}} VideoFacts zeros and ""
 *   where the browser cannot tell
 *
 * @typedef {Object} ReadOptions
 * @property {MediaLimits} limits
 * @property {(file: Blob) => Promise<VideoFacts>} lookAtVideo
 * @property {(done: number) => void} [onProgress] from 0 to 1
 * @property {AbortSignal} [signal]
 */

/** A file that cannot be attached, with the reason as a code. */
export class MediaError extends Error {
  /**
   * @param {MediaProblem} code
   * @param {MediaKind | null} kind
   * @param {string} fileName
   */
  constructor(code, kind, fileName) {
    super(`attachment: ${code}`);
    this.name = "MediaError";
    this.code = code;
    this.kind = kind;
    this.fileName = fileName;
  }
}

/**
 * @param {File} file
 * @param {ReadOptions} options
 * @returns {Promise<MediaPart>}
 * @throws {MediaError}
 * @throws {DOMException} aborted
 */
export async function readMedia(file, options) {
  const kind = kindOfFile(file);
  if (kind === null) throw new MediaError("unknown_kind", null, file.name);
  /** @param {Partial<import("./media-rules.js").MediaFacts>} [facts] */
  const check = (facts) => {
    const problem = mediaProblem({ kind, sizeBytes: file.size, ...facts }, options.limits);
    if (problem) throw new MediaError(problem, kind, file.name);
  };
  check();
  if (kind === "audio") return readSound(file, check);
  if (kind === "image") return readImage(file, check, options);
  const { durationS, widthPx, heightPx, poster } = await options.lookAtVideo(file);
  check({ durationS });
  const data = await readBase64(file, options);
  return { type: "video", data, mimeType: file.type, name: file.name, durationS, widthPx, heightPx, poster };
}

/** @typedef {(facts?: Partial<import("./media-rules.js").MediaFacts>) => void} Check */

/**
 * @param {File} file
 * @param {Check} check
 * @returns {Promise<MediaPart>}
 */
async function readSound(file, check) {
  const samples = await decodeSound(file).catch(() => {
    throw new MediaError("unreadable", "audio", file.name);
  });
  if (samples.length === 0) throw new MediaError("empty", "audio", file.name);
  const durationS = samples.length / LIMITS.INPUT_SAMPLE_RATE_HZ;
  check({ durationS });
  return { type: "audio", data: floatsToBase64(samples), mimeType: "", name: file.name, durationS };
}

/**
 * @param {File} file
 * @param {Check} check
 * @param {ReadOptions} options
 * @returns {Promise<MediaPart>}
 */
async function readImage(file, check, options) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  const isSentAsIs = IMAGE_TYPES.includes(file.type);
  if (bitmap === null && !isSentAsIs) throw new MediaError("unreadable", "image", file.name);
  const widthPx = bitmap?.width ?? 0;
  const heightPx = bitmap?.height ?? 0;
  check({ widthPx, heightPx });
  const kept = isSentAsIs || bitmap === null ? file : await redraw(bitmap);
  bitmap?.close();
  if (kept.size > options.limits.imageMaxBytes) throw new MediaError("image_big", "image", file.name);
  const data = await readBase64(kept, options);
  return { type: "image", data, mimeType: kept.type, name: file.name, widthPx, heightPx };
}

/** @param {ImageBitmap} bitmap */
async function redraw(bitmap) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
  return canvas.convertToBlob({ type: "image/png" });
}

/**
 * @param {Blob} file
 * @param {{onProgress?: (done: number) => void, signal?: AbortSignal}} options
 * @returns {Promise<string>}
 */
function readBase64(file, { onProgress, signal }) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    signal?.addEventListener("abort", () => reader.abort());
    reader.onprogress = ({ loaded, total }) => onProgress?.(total > 0 ? loaded / total : 0);
    reader.onabort = () => reject(new DOMException("The reading was ended.", "AbortError"));
    reader.onerror = () => reject(new MediaError("unreadable", null, ""));
    // The browser encodes faster than we could: "data:TYPE;base64,TEXT".
    reader.onload = () => resolve(String(reader.result).split(",", 2)[1] ?? "");
    reader.readAsDataURL(file);
  });
}
