// @ts-check
/** The camera's card: the picture, its size, and how many come in a second. */

import { openCamera } from "../duplex/lib/camera.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { byId, on, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { createRateCounter } from "../shared/median.js";
import { problemResult } from "./results.js";

/** @typedef {import("./results.js").Results} Results */

/** @typedef {import("../duplex/lib/camera.js").Camera} Camera */

const SLOW_FPS = 8; // ours: below it a picture looks broken to the one who is seen
const SETTLE_PICTURES = 20; // the first ones come as the camera wakes up
/** Codes that are the page's or the browser's, not the camera's. */
const SHARED_CODES = new Set(["insecure_context", "unsupported"]);

/** @param {unknown} error */
function codeOf(error) {
  const code = error instanceof Error && "code" in error ? String(error.code) : "unsupported";
  return SHARED_CODES.has(code) ? code : `camera_${code}`;
}

/** @param {unknown} error @returns {string} what the browser said */
function reasonOf(error) {
  return error instanceof Error && error.cause instanceof Error ? error.cause.message : "";
}

/**
 * @param {Camera} camera
 * @param {(shown: {width: number, height: number, fps: number}, count: number) => boolean} onPicture
 *   false ends it
 */
function watchPictures(camera, onPicture) {
  const counter = createRateCounter();
  const look = (/** @type {number} */ nowMs) => {
    const { rate, count } = counter.count(nowMs);
    const { widthPx: width, heightPx: height } = camera.size;
    if (onPicture({ width, height, fps: Math.round(rate) }, count)) camera.video.requestVideoFrameCallback(look);
  };
  camera.video.requestVideoFrameCallback(look);
}

/** @param {string} device @param {{width: number, height: number, fps: number}} shown @returns {import("./results.js").Result} */
function cameraResult(device, shown) {
  const facts = { device, ...shown };
  if (shown.fps >= SLOW_FPS) return { state: "good", text: { key: "check.camera_good", params: shown }, facts };
  const next = { key: "check.camera_slow_next" };
  return { state: "caution", text: { key: "check.camera_slow", params: shown }, next, facts };
}

/** @param {Results} results */
export function mountCameraCheck(results) {
  const start = byId("camera-start", HTMLButtonElement);
  const stop = byId("camera-stop", HTMLButtonElement);
  const video = byId("camera-video", HTMLVideoElement);
  const size = byId("camera-size", HTMLElement);
  const devices = mountAudioDeviceSelector(byId("camera-devices", HTMLElement), {
    prefix: "check",
    kinds: ["camera"],
    onChange: () => void (camera && open()),
  });
  /** @type {Camera | null} */
  let camera = null;
  let opening = 0;
  let shown = { width: 0, height: 0, fps: 0 };

  const draw = () => {
    start.hidden = camera !== null;
    stop.hidden = camera === null;
    size.hidden = camera === null || shown.fps === 0;
    setText(size, t("check.camera_size", shown));
  };
  const close = () => {
    opening += 1;
    camera?.close();
    camera = null;
    draw();
  };
  /** @param {unknown} error */
  const fail = (error) => {
    close();
    // One can talk without a camera.
    results.set("camera", problemResult(codeOf(error), { state: "caution", detail: reasonOf(error) }));
  };
  const open = async () => {
    close();
    const mine = opening;
    results.set("camera", { state: "running", text: { key: "check.camera_opening" } });
    try {
      const opened = await openCamera({ deviceId: devices.cameraId, video });
      if (mine !== opening) return opened.close();
      camera = opened;
      follow(opened, mine);
    } catch (error) {
      if (mine === opening) fail(error);
    }
    draw();
    await devices.refresh();
  };
  /** @param {Camera} opened @param {number} mine */
  const follow = (opened, mine) => {
    on(opened, "ended", (/** @type {CustomEvent<Error>} */ { detail }) => fail(detail));
    watchPictures(opened, (now, count) => {
      if (mine !== opening) return false;
      shown = now;
      draw();
      const isOver = count >= SETTLE_PICTURES && results.get("camera").state === "running";
      if (isOver) results.set("camera", cameraResult(opened.label, now));
      return true;
    });
  };
  on(start, "click", () => void open());
  on(stop, "click", close);
  on(window, "pagehide", close);
  onLangChange(draw);
  draw();
}
