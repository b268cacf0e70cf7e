/** Cards of microphone (level, test recording) and camera (picture, frame rate). */

import { cameraCode, openCamera } from "../duplex/lib/camera.js";
import { encodeWav } from "../shared/pcm.js";
import { CAPTURE_RATE_HZ } from "../duplex/lib/capture-format.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { byId, find, on, setText } from "../shared/lit.js";
import { onLangChange, reasonOf, t } from "../shared/texts.js";
import { createRateCounter } from "../shared/async.js";
import { makeSoundPlayer } from "../shared/sound-player.js";
import { createMicrophoneSession, takeClip } from "./devices.js";
import { problemResult } from "./results.js";

/** @import { Camera } from "../duplex/lib/camera.js" */
/** @import { SoundPlayer } from "../shared/sound-player.js" */
/** @import { LevelView, LevelWord, Result, Results } from "./results.js" */

// Level meter of the microphone with peak hold and rating.

const READER_INTERVAL_MS = 1_000; // how often the value changes for screen readers
const PERCENT = 100;

/** @param {HTMLElement} el @param {HTMLElement} words @returns {{update: (view: LevelView) => void, clear: () => void}} */
function mountLevelMeter(el, words) {
  const bar = find(el, ".meter-bar", HTMLElement);
  const hold = find(el, ".meter-hold", HTMLElement);
  /** @type {LevelWord | "off"} */ let word = "off";
  let announcedAtMs = 0;
  const draw = () => {
    el.dataset.word = word;
    setText(words, t(`check.level_${word}`));
    el.setAttribute("aria-valuetext", t(`check.level_${word}`));
  };
  onLangChange(draw);
  draw();
  return {
    update(view) {
      bar.style.setProperty("scale", `${view.bar} 1`);
      hold.style.setProperty("left", `${view.hold * PERCENT}%`);
      const nowMs = performance.now();
      if (nowMs - announcedAtMs >= READER_INTERVAL_MS) {
        announcedAtMs = nowMs;
        el.setAttribute("aria-valuenow", String(Math.round(view.bar * PERCENT)));
      }
      if (view.word === word) return;
      word = view.word;
      draw();
    },
    clear() {
      word = "off";
      bar.style.setProperty("scale", "0 1");
      hold.style.setProperty("left", "0%");
      el.setAttribute("aria-valuenow", "0");
      draw();
    },
  };
}

/** @param {Results} results @returns {{start: () => Promise<void>, stop: () => Promise<void>, deviceId: () => string}} */
export function mountMicrophoneCheck(results) {
  const start = byId("mic-start", HTMLButtonElement);
  const stop = byId("mic-stop", HTMLButtonElement);
  const meter = mountLevelMeter(byId("meter", HTMLElement), byId("meter-word", HTMLElement));
  const session = createMicrophoneSession(results, { onLevel: meter.update, onChange: () => show() });
  const recorder = mountClipRecorder(session);
  const devices = mountAudioDeviceSelector(byId("mic-devices", HTMLElement), {
    prefix: "check",
    kinds: ["mic"],
    onChange: () => void (session.microphone && open()),
  });
  const show = () => {
    const isOpen = session.microphone !== null;
    start.hidden = isOpen;
    stop.hidden = !isOpen;
    if (!isOpen) meter.clear();
    recorder.update();
  };
  const open = async () => {
    const hadFocus = document.activeElement === start;
    let openedId;
    do {
      openedId = devices.micId;
      await session.open(openedId);
    } while (session.microphone && devices.micId !== openedId); // another one was selected meanwhile
    if (hadFocus && session.microphone) stop.focus(); // the pressed button is hidden now
    await devices.refresh(); // device names require permission
  };
  const close = async () => {
    const hadFocus = document.activeElement === stop;
    await session.close();
    if (hadFocus) start.focus();
  };
  on(start, "click", () => void open());
  on(stop, "click", () => void close());
  on(window, "pagehide", () => void session.close());
  show();
  return { start: open, stop: session.close, deviceId: () => devices.micId };
}

/**
 * @param {ReturnType<typeof createMicrophoneSession>} session
 * @returns {{update: () => void}} to be called when the microphone is opened or closed
 */
function mountClipRecorder(session) {
  const record = byId("mic-record", HTMLButtonElement);
  const label = find(record, "span", HTMLElement);
  const clip = byId("mic-clip", HTMLElement);
  /** @type {SoundPlayer | null} */ let player = null;
  /** @type {AbortController | null} */ let recording = null;
  const draw = () => {
    record.disabled = session.microphone === null || recording !== null;
    setText(label, t(recording ? "check.mic_recording" : "check.mic_record"));
  };
  const run = async () => {
    const { microphone } = session;
    if (microphone === null || recording) return;
    player?.pause();
    recording = new AbortController();
    draw();
    const samples = await takeClip(microphone, recording.signal);
    recording = null;
    draw();
    if (samples.length === 0) return;
    clip.hidden = false;
    player?.close();
    player = makeSoundPlayer({
      file: () => new Blob([encodeWav(samples, CAPTURE_RATE_HZ)], { type: "audio/wav" }),
      durationS: samples.length / CAPTURE_RATE_HZ,
      label: () => t("check.clip"),
    });
    clip.replaceChildren(player.node);
    find(clip, "button", HTMLButtonElement).focus();
    player.play();
  };
  on(record, "click", () => void run());
  onLangChange(draw);
  return {
    update() {
      if (session.microphone === null) recording?.abort();
      draw();
    },
  };
}

// The camera's card: picture, size, frame rate.

const SLOW_FPS = 8; // our own limit, below which the picture looks broken
const SETTLE_PICTURES = 20; // frames until the rate has settled

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

/** @param {string} device @param {{width: number, height: number, fps: number}} shown @returns {Result} */
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
  /** @type {Camera | null} */ let camera = null;
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
  const fail = (/** @type {unknown} */ error) => {
    close();
    // A camera is optional.
    results.set("camera", problemResult(cameraCode(error), { state: "caution", detail: reasonOf(error) }));
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
  const follow = (/** @type {Camera} */ opened, /** @type {number} */ mine) => {
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
