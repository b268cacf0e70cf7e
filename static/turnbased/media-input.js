/** Reads attachments: validates files, decodes audio, converts pictures the server cannot read, probes videos; and records voice. */

import { openMicrophone, recordFrom } from "../duplex/lib/capture.js";
import { mountPainter, themeColours } from "../shared/canvas-tools.js";
import { decodeMono, videoEvent } from "../shared/decode-sound.js";
import { find, html, iconButton, mountView, setText } from "../shared/lit.js";
import { CodedError, formatClock, t } from "../shared/texts.js";
import { floatsToBase64, levelShare } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";
import { IMAGE_TYPES, kindOfFile, mediaProblem } from "./attachments.js";

/** @import { FileFacts, MediaLimits, MediaPart } from "../../types/chat.js" */

/** `onProgress` gets a share from 0 to 1 @typedef {{limits: MediaLimits, onProgress?: (done: number) => void, signal?: AbortSignal}} ReadOptions */

/**
 * @param {File} file
 * @param {ReadOptions} options
 * @throws {CodedError}
 * @throws {DOMException} aborted
 * @returns {Promise<MediaPart>}
 */
export async function readMedia(file, options) {
  const kind = kindOfFile(file);
  if (kind === null) throw new CodedError("unknown_kind");
  /** @param {Partial<FileFacts>} [facts] */
  const check = (facts) => {
    const problem = mediaProblem({ kind, sizeBytes: file.size, ...facts }, options.limits);
    if (problem) throw new CodedError(problem);
  };
  check();
  if (kind === "audio") return readSound(file, check);
  if (kind === "image") return readImage(file, check, options);
  const { durationS, widthPx, heightPx, poster } = await lookAtVideo(file);
  check({ durationS });
  const data = await readBase64(file, options);
  return { type: "video", data, mimeType: file.type, name: file.name, durationS, widthPx, heightPx, poster };
}

/** @typedef {(facts?: Partial<FileFacts>) => void} Check */

/** @param {File} file @param {Check} check @returns {Promise<MediaPart>} */
async function readSound(file, check) {
  const samples = await decodeMono(file);
  if (samples.length === 0) throw new CodedError("empty");
  const durationS = samples.length / LIMITS.INPUT_SAMPLE_RATE_HZ;
  check({ durationS });
  return { type: "audio", data: floatsToBase64(samples), mimeType: "", name: file.name, durationS };
}

/** @param {File} file @param {Check} check @param {ReadOptions} options @returns {Promise<MediaPart>} */
async function readImage(file, check, options) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  const isSentAsIs = IMAGE_TYPES.includes(file.type);
  if (bitmap === null && !isSentAsIs) throw new CodedError("unreadable");
  const widthPx = bitmap?.width ?? 0;
  const heightPx = bitmap?.height ?? 0;
  check({ widthPx, heightPx });
  const kept = isSentAsIs || bitmap === null ? file : await redraw(bitmap);
  bitmap?.close();
  if (kept.size > options.limits.imageMaxBytes) throw new CodedError("image_big");
  const data = await readBase64(kept, options);
  return { type: "image", data, mimeType: kept.type, name: file.name, widthPx, heightPx };
}

async function redraw(/** @type {ImageBitmap} */ bitmap) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
  return canvas.convertToBlob({ type: "image/png" });
}

/** @param {Blob} file @param {ReadOptions} options @returns {Promise<string>} */
function readBase64(file, { onProgress, signal }) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    signal?.addEventListener("abort", () => reader.abort());
    reader.onprogress = ({ loaded, total }) => onProgress?.(total > 0 ? loaded / total : 0);
    reader.onabort = () => reject(new DOMException("The reading was ended.", "AbortError"));
    reader.onerror = () => reject(new CodedError("unreadable"));
    // The browser encodes faster than a script: "data:TYPE;base64,TEXT".
    reader.onload = () => resolve(String(reader.result).split(",", 2)[1] ?? "");
    reader.readAsDataURL(file);
  });
}

// Properties of a video file: duration, size, poster.

const LOOK_LIMIT_MS = 8_000; // some files never load; they are sent without a poster
const POSTER_SIDE_PX = 320;
const POSTER_QUALITY = 0.75;
const POSTER_AT_S = 0.1; // the very first frame is often black

/** Zeros and "" where unknown. @param {Blob} file */
async function lookAtVideo(file) {
  const video = document.createElement("video");
  video.muted = true;
  video.preload = "auto";
  const url = URL.createObjectURL(file);
  try {
    video.src = url;
    await videoEvent(video, "loadeddata", LOOK_LIMIT_MS);
    const durationS = Number.isFinite(video.duration) ? video.duration : 0;
    video.currentTime = Math.min(POSTER_AT_S, durationS);
    await videoEvent(video, "seeked", LOOK_LIMIT_MS);
    return { durationS, widthPx: video.videoWidth, heightPx: video.videoHeight, poster: draw(video) };
  } catch {
    return { durationS: 0, widthPx: 0, heightPx: 0, poster: "" }; // a format that only the server may know
  } finally {
    video.removeAttribute("src");
    video.load();
    URL.revokeObjectURL(url);
  }
}

/** @param {HTMLVideoElement} video @returns {string} JPEG as Base64 */
function draw(video) {
  const scale = Math.min(1, POSTER_SIDE_PX / Math.max(video.videoWidth, video.videoHeight, 1));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(video.videoWidth * scale));
  canvas.height = Math.max(1, Math.round(video.videoHeight * scale));
  canvas.getContext("2d")?.drawImage(video, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", POSTER_QUALITY).split(",", 2)[1] ?? "";
}

// Records a voice message at 16 kHz, up to a limit, and shows level, time and buttons meanwhile.

const RATE_HZ = LIMITS.INPUT_SAMPLE_RATE_HZ;
const CHUNK_SAMPLES = RATE_HZ / 10;
const BAR_PX = 3;
const GAP_PX = 2;
const MOST_BARS = 600;

/**
 * @param {HTMLElement} el shown while it records
 * @param {{cancel: () => void, done: () => void, onLost: (code: string) => void}} actions `done`: it is full or to be ended
 */
export function mountRecorder(el, { cancel, done, onLost }) {
  /** @type {number[]} */ let bars = [];
  let isSilent = false;
  el.classList.add("record-panel");
  const draw = mountView(
    el,
    () =>
      html`<div class="record-line">
          ${iconButton("trash", t("chat.record_cancel"), cancel, { style: "" })}<span class="record-dot" aria-hidden="true"></span
          ><span class="number record-time" role="timer"></span
          ><canvas class="record-wave" aria-hidden="true"></canvas>${iconButton("check", t("chat.record_end"), done, {
            style: "button-primary",
          })}
        </div>
        <p class="small soft record-hint" role="status">${t(isSilent ? "chat.record_silent" : "chat.record_hint")}</p>`,
  );
  const time = find(el, ".record-time");
  const colours = themeColours(el);
  const painter = mountPainter(find(el, "canvas", HTMLCanvasElement), (ctx, width, height) => {
    const count = Math.floor(width / (BAR_PX + GAP_PX));
    ctx.fillStyle = colours.css(isSilent ? "caution" : "listen");
    bars.slice(-count).forEach((share, index) => {
      const length = Math.max(2, share * height);
      ctx.fillRect(index * (BAR_PX + GAP_PX), (height - length) / 2, BAR_PX, length);
    });
  });
  const warn = (/** @type {boolean} */ isNowSilent) => {
    isSilent = isNowSilent;
    draw();
  };
  /** @param {{maxS: number, deviceId?: string}} options @throws {CodedError} */
  return async ({ maxS, deviceId }) => {
    const microphone = await openMicrophone({ deviceId, chunkSamples: CHUNK_SAMPLES });
    const recording = recordFrom(microphone, Math.floor(maxS * RATE_HZ));
    void recording.full.then(done);
    bars = [];
    warn(false);
    setText(time, formatClock(0));
    microphone.on("level", ({ rms }) => {
      bars = [...bars, levelShare(rms)].slice(-MOST_BARS);
      const now = formatClock(recording.lengthSamples() / RATE_HZ);
      setText(time, t("chat.record_time", { now, most: formatClock(maxS) }));
      painter.request();
    });
    microphone.on("silent", () => warn(true));
    microphone.on("audible", () => warn(false));
    microphone.on("ended", ({ code }) => onLost(code));
    return {
      close: () => microphone.close(),
      /** Ends the recording and releases the device. @returns {Promise<MediaPart & {durationS: number}>} */
      async finish() {
        const samples = await recording.finish();
        await microphone.close();
        const durationS = samples.length / RATE_HZ;
        return { type: "audio", data: floatsToBase64(samples), mimeType: "", name: "", durationS };
      },
    };
  };
}
