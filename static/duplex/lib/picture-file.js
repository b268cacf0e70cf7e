// @ts-check
/** A picture from a file, as a call sends it. Device. */

import { bytesToBase64 } from "../../shared/pcm.js";
import { fitSize } from "./camera.js";

const MAX_SIDE_PX = 1_280; // as of the camera's pictures
const QUALITY = 0.85;

/** @param {Blob} file @returns {Promise<string>} JPEG in Base64 @throws {Error} it is no picture that the browser can read */
export async function readPicture(file) {
  const bitmap = await createImageBitmap(file);
  const { widthPx, heightPx } = fitSize(bitmap.width, bitmap.height, MAX_SIDE_PX);
  const canvas = new OffscreenCanvas(widthPx, heightPx);
  canvas.getContext("2d", { alpha: false })?.drawImage(bitmap, 0, 0, widthPx, heightPx);
  bitmap.close();
  const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
  return bytesToBase64(new Uint8Array(await blob.arrayBuffer()));
}
