/** The microphone's card: level and its rating, and a test recording. */

import { CAPTURE_RATE_HZ } from "../duplex/lib/capture-format.js";
import { openMicrophone, recordFrom } from "../duplex/lib/capture.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { mountLevelMeter } from "../shared/level-meter.js";
import { byId, find, on, setText } from "../shared/lit.js";
import { encodeWav } from "../shared/pcm.js";
import { makeSoundPlayer } from "../shared/sound-player.js";
import { codeOf, onLangChange, reasonOf, t } from "../shared/texts.js";
import { createLevelJudge, microphoneResult, problemResult } from "./results.js";

/** @import { Microphone } from "../duplex/lib/capture.js" */
/** @import { SoundPlayer } from "../shared/sound-player.js" */
/** @import { LevelWord, Results } from "./results.js" */

const CHUNK_S = 0.1;
const CLIP_S = 3;
const QUIETEST_DB = -99; // shown instead of minus infinity

function factsOf(/** @type {Microphone} */ microphone) {
  const settings = microphone.stream.getAudioTracks()[0]?.getSettings() ?? {};
  return {
    device: microphone.label,
    context_hz: microphone.context.sampleRate,
    device_hz: settings.sampleRate ?? "?",
    echo_cancellation: String(settings.echoCancellation ?? "?"),
    noise_suppression: String(settings.noiseSuppression ?? "?"),
  };
}

export function mountMicrophoneCheck(/** @type {Results} */ results) {
  const start = byId("mic-start", HTMLButtonElement);
  const stop = byId("mic-stop", HTMLButtonElement);
  const record = byId("mic-record", HTMLButtonElement);
  const place = byId("meter");
  const meter = mountLevelMeter(place, { labelKey: "check.meter", sign: "mic" });
  const devices = mountAudioDeviceSelector(byId("mic-devices"), {
    prefix: "check",
    kinds: ["mic"],
    onChange: () => void (microphone && open()),
  });
  /** @type {Microphone | null} */ let microphone = null;
  let opening = 0;
  /** @type {LevelWord | "off"} */ let word = "off";
  /** @type {{finish: () => Promise<Float32Array>} | null} */ let recording = null;
  /** @type {SoundPlayer | null} */ let player = null;

  const draw = () => {
    start.hidden = microphone !== null;
    stop.hidden = microphone === null;
    record.disabled = microphone === null || recording !== null;
    setText(find(record, "span"), t(recording ? "check.mic_recording" : "check.mic_record"));
    place.dataset.word = word;
    setText(byId("meter-word"), t(`check.level_${word}`));
    meter.track.setAttribute("aria-valuetext", t(`check.level_${word}`));
  };
  const close = async () => {
    opening += 1;
    const open = microphone;
    microphone = null;
    word = "off";
    meter.clear();
    void endClip();
    results.leave("microphone");
    draw();
    await open?.close();
  };
  const fail = async (/** @type {unknown} */ problem) => {
    await close();
    results.set("microphone", problemResult(codeOf(problem), { detail: reasonOf(problem) }));
  };
  const listen = (/** @type {Microphone} */ heard) => {
    const judge = createLevelJudge();
    const sinceMs = performance.now();
    heard.on("ended", (problem) => void fail(problem));
    heard.on("level", (level) => {
      const nowMs = performance.now();
      const view = judge(level, nowMs);
      meter.update(view.rms, nowMs);
      const isNews = view.word !== word;
      word = view.word;
      if (isNews) draw();
      const facts = { ...factsOf(heard), peak_db: Math.max(QUIETEST_DB, Math.round(view.peakDb)) };
      const result = microphoneResult(results.get("microphone"), view, nowMs - sinceMs, facts);
      if (result) results.set("microphone", result);
    });
  };
  /** The chosen microphone; another one may be chosen while it opens. */
  const open = async () => {
    const hadFocus = document.activeElement === start;
    const deviceId = devices.micId;
    await close();
    const mine = opening;
    results.set("microphone", { state: "running", text: { key: "check.mic_opening" } });
    try {
      const opened = await openMicrophone({ deviceId, chunkSamples: CHUNK_S * CAPTURE_RATE_HZ });
      if (mine !== opening) return void opened.close();
      microphone = opened;
    } catch (error) {
      if (mine === opening) await fail(error);
    }
    if (microphone && mine === opening) {
      if (devices.micId !== deviceId) return open();
      results.set("microphone", { state: "running", text: { key: "check.mic_speak" }, facts: factsOf(microphone) });
      listen(microphone);
      draw();
      if (hadFocus) stop.focus(); // the pressed button is hidden now
    }
    await devices.refresh(); // device names require permission
  };
  const takeClip = () => {
    if (!microphone || recording) return;
    player?.pause();
    const taken = recordFrom(microphone, CLIP_S * CAPTURE_RATE_HZ);
    recording = taken;
    void taken.full.then(endClip);
    draw();
  };
  /** Also ends it early, when the microphone is closed. */
  const endClip = async () => {
    const ending = recording;
    if (!ending) return;
    recording = null;
    const samples = await ending.finish();
    draw();
    if (samples.length === 0) return;
    const clip = byId("mic-clip");
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
  on(start, "click", () => void open());
  on(stop, "click", async () => {
    const hadFocus = document.activeElement === stop;
    await close();
    if (hadFocus) start.focus();
  });
  on(record, "click", takeClip);
  on(window, "pagehide", () => void close());
  onLangChange(draw);
  draw();
  return { start: open, stop: close, deviceId: () => devices.micId };
}
