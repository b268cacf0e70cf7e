// @ts-check
/** The microphone's card: level, words for it, and three seconds to hear oneself. */

import { CAPTURE_RATE_HZ } from "../duplex/lib/capture-format.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { byId, find, on, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { makeSoundPlayer } from "../shared/sound-player.js";
import { encodeWav } from "../shared/pcm.js";
import { createMicrophoneSession, takeClip } from "./devices.js";

/** @typedef {import("./level-judge.js").LevelView} LevelView */

// The bar of the microphone's loudness, its lingering peak and the word for it.

const READER_INTERVAL_MS = 1_000; // how often a screen reader's number changes
const PERCENT = 100;

/** @param {HTMLElement} el @param {HTMLElement} words @returns {{update: (view: LevelView) => void, clear: () => void}} */
function mountLevelMeter(el, words) {
  const bar = find(el, ".meter-bar", HTMLElement);
  const hold = find(el, ".meter-hold", HTMLElement);
  /** @type {import("./level-judge.js").LevelWord | "off"} */
  let word = "off";
  let toldAtMs = 0;
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
      if (nowMs - toldAtMs >= READER_INTERVAL_MS) {
        toldAtMs = nowMs;
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

/**
 * @param {import("./results.js").Results} results
 * @returns {{start: () => Promise<void>, stop: () => Promise<void>, deviceId: () => string}}
 */
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
    } while (session.microphone && devices.micId !== openedId); // another one was chosen meanwhile
    if (hadFocus && session.microphone) stop.focus(); // the button that was pressed is gone
    await devices.refresh(); // names are given only after permission
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
 * @returns {{update: () => void}} call it when the microphone was opened or closed
 */
function mountClipRecorder(session) {
  const record = byId("mic-record", HTMLButtonElement);
  const label = find(record, "span", HTMLElement);
  const clip = byId("mic-clip", HTMLElement);
  /** @type {import("../shared/sound-player.js").SoundPlayer | null} */
  let player = null;
  /** @type {AbortController | null} */
  let recording = null;
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
