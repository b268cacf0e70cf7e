// @ts-check
/**
 * What the browser can tell of a video file: length, size, a small picture of its beginning.
 */

import { on } from "../shared/dom.js";

const LOOK_LIMIT_MS = 8_000; // some files never answer; they are sent without a picture
const POSTER_SIDE_PX = 320;
const POSTER_QUALITY = 0.75;
const POSTER_AT_S = 0.1; // the very first picture is often black

/** @typedef {import("./media-reader.js").VideoFacts} VideoFacts */

/** @type {VideoFacts} */
const NOTHING = Object.freeze({ durationS: 0, widthPx: 0, heightPx: 0, poster: "" });

/**
 * @param {Blob} file
 * @returns {Promise<VideoFacts>} zeros where it cannot tell
 */
export async function lookAtVideo(file) {
  const video = document.createElement("video");
  video.muted = true;
  video.preload = "auto";
  const url = URL.createObjectURL(file);
  try {
    video.src = url;
    await happens(video, "loadeddata");
    const durationS = Number.isFinite(video.duration) ? video.duration : 0;
    video.currentTime = Math.min(POSTER_AT_S, durationS);
    await happens(video, "seeked");
    return { durationS, widthPx: video.videoWidth, heightPx: video.videoHeight, poster: draw(video) };
  } catch {
    return NOTHING; // a form of video only the server may know
  } finally {
    video.removeAttribute("src");
    video.load();
    URL.revokeObjectURL(url);
  }
}

/**
 * @param {HTMLVideoElement} video
 * @param {string} type
 * @returns {Promise<void>}
 */
function happens(video, type) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => finish(reject), LOOK_LIMIT_MS);
    /** @param {() => void} done */
    const finish = (done) => {
      clearTimeout(timer);
      ends.forEach((end) => end());
      done();
    };
    const ends = [on(video, type, () => finish(resolve)), on(video, "error", () => finish(reject))];
  });
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
