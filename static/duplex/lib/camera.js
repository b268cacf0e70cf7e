/** The user's camera, and JPEG frames of it or of any video element. Device. */

import { CodedError } from "../../shared/texts.js";
import { bytesToBase64 } from "../../shared/pcm.js";
import { openChosen, openUserMedia } from "./capture.js";

/** @import { CameraOptions, Frame } from "../../../types/devices.js" */

const WANTED_WIDTH_PX = 1_280;
const WANTED_HEIGHT_PX = 720;
const MAX_SIDE_PX = 1_280;
const FRAME_QUALITY = 0.7;
const FILE_QUALITY = 0.85;
const HAVE_CURRENT_DATA = 2; // HTMLMediaElement.readyState from which a frame is available

/** @typedef {"user" | "environment"} Facing */

export function fitSize(/** @type {number} */ widthPx, /** @type {number} */ heightPx, /** @type {number} */ maxSidePx) {
  const scale = Math.min(1, maxSidePx / Math.max(widthPx, heightPx));
  return { widthPx: Math.max(1, Math.round(widthPx * scale)), heightPx: Math.max(1, Math.round(heightPx * scale)) };
}

/**
 * @param {CanvasImageSource} picture
 * @param {number} fullWidthPx
 * @param {number} fullHeightPx
 * @param {number} quality 0 to 1
 * @param {OffscreenCanvas} [canvas] reused
 * @returns {Promise<Frame>} scaled down to the longest side that is sent
 */
async function encodeJpeg(picture, fullWidthPx, fullHeightPx, quality, canvas = new OffscreenCanvas(1, 1)) {
  const { widthPx, heightPx } = fitSize(fullWidthPx, fullHeightPx, MAX_SIDE_PX);
  if (canvas.width !== widthPx) canvas.width = widthPx;
  if (canvas.height !== heightPx) canvas.height = heightPx;
  canvas.getContext("2d", { alpha: false })?.drawImage(picture, 0, 0, widthPx, heightPx);
  const blob = await canvas.convertToBlob({ type: "image/jpeg", quality });
  const bytes = new Uint8Array(await blob.arrayBuffer());
  return { base64: bytesToBase64(bytes), widthPx, heightPx, bytes: bytes.length };
}

/** @param {HTMLVideoElement} video @returns {() => Promise<Frame | null>} null: no picture yet */
export function createFrameGrabber(video) {
  const canvas = new OffscreenCanvas(1, 1);
  return async () => {
    const { readyState, videoWidth, videoHeight } = video;
    if (readyState < HAVE_CURRENT_DATA || videoWidth === 0) return null;
    return encodeJpeg(video, videoWidth, videoHeight, FRAME_QUALITY, canvas);
  };
}

/** Encodes a picture file like a camera frame. @param {Blob} file @returns {Promise<string>} Base64 @throws {Error} the browser cannot decode it */
export async function readPicture(file) {
  const bitmap = await createImageBitmap(file);
  const { base64 } = await encodeJpeg(bitmap, bitmap.width, bitmap.height, FILE_QUALITY);
  bitmap.close();
  return base64;
}

/** @param {Pick<CameraOptions, "facing" | "deviceId">} options @throws {CodedError} */
function openStream({ facing = "user", deviceId }) {
  const size = { width: { ideal: WANTED_WIDTH_PX }, height: { ideal: WANTED_HEIGHT_PX } };
  const ask = (/** @type {{deviceId?: object}} */ device) =>
    openUserMedia({ video: { ...(device.deviceId ? device : { facingMode: facing }), ...size } }, "not_found");
  return openChosen(ask, deviceId, "not_found");
}

/** An open camera. Event `ended` (CodedError "unplugged") when it is taken away. */
export class Camera extends EventTarget {
  /** @type {MediaStream | null} */ #stream = null;
  /** @type {Facing} */ facing;
  #round = 0; // incremented at each switch and end, so that a camera that opens too late is closed again

  constructor(/** @type {CameraOptions} */ { facing = "user", video = document.createElement("video") }) {
    super();
    this.video = video; // shows the camera
    this.facing = facing;
    video.muted = true;
    video.playsInline = true;
  }

  get isOpen() {
    return this.#stream !== null;
  }

  get label() {
    return this.#stream?.getVideoTracks()[0]?.label ?? "";
  }

  get size() {
    return { widthPx: this.video.videoWidth, heightPx: this.video.videoHeight };
  }

  get deviceId() {
    return this.#stream?.getVideoTracks()[0]?.getSettings().deviceId ?? "";
  }

  /** @param {Pick<CameraOptions, "facing" | "deviceId">} wish @throws {Error} then no camera is open */
  async switchTo(wish) {
    this.#stopTracks(); // phones refuse a second camera while the first is open
    const round = ++this.#round;
    const stream = await openStream(wish);
    if (round !== this.#round) return stream.getTracks().forEach((track) => track.stop());
    this.#stream = stream;
    if (wish.facing) this.facing = wish.facing;
    this.video.srcObject = stream;
    stream.getVideoTracks()[0]?.addEventListener("ended", () => {
      if (this.#stream !== stream) return;
      this.dispatchEvent(new CustomEvent("ended", { detail: new CodedError("unplugged") }));
    });
    try {
      await this.video.play();
    } catch (error) {
      if (this.#stream === stream) this.close();
      throw error;
    }
    if (this.video.readyState >= HAVE_CURRENT_DATA) return;
    await new Promise((resolve) => this.video.addEventListener("loadeddata", resolve, { once: true }));
  }

  async flip() {
    await this.switchTo({ facing: this.facing === "user" ? "environment" : "user" });
  }

  #stopTracks() {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = null;
  }

  close() {
    this.#round += 1;
    this.#stopTracks();
    this.video.srcObject = null;
  }
}

/** Resolves once the first frame is shown. @param {CameraOptions} [options] @returns {Promise<Camera>} @throws {CodedError} */
export async function openCamera(options = {}) {
  const camera = new Camera(options);
  await camera.switchTo({ facing: options.facing, deviceId: options.deviceId });
  return camera;
}
