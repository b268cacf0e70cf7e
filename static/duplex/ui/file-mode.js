/** A video file as the source of a call: selection, mixer, playback. Loaded on demand. */

import { mountLevelMeter } from "../../shared/level-meter.js";
import { html, icon, mountView, on, textButton } from "../../shared/lit.js";
import { formatClock, formatNumber, problemWords, t } from "../../shared/texts.js";
import { mixSettingsOf } from "../lib/call-settings.js";
import { bindSettings, iconPills, settingRow } from "../../shared/settings-form.js";
import { VIDEO_MAX_S } from "../lib/capture-format.js";
import { MixerBench, openVideoSource, readVideoFile, showVideo } from "../lib/file-source.js";
import { loudnessText } from "../lib/measure.js";
import { mountFilePanel } from "./source-choice.js";

/** @import { FileSource } from "../lib/file-source.js" */
/** @import { MicrophoneOptions, VideoFile } from "../../../types/devices.js" */
/** @import { MixLevels } from "../lib/mixer-controller.js" */
/** @import { OmniStore } from "../lib/call-settings.js" */

const SOUNDS = Object.freeze({ file: "film", microphone: "mic", both: "plus" });

/**
 * @param {{panel: HTMLElement, mixer: HTMLDetailsElement, progress: HTMLProgressElement, video: HTMLVideoElement}} parts
 * @param {{store: OmniStore, onFile: (url: string | null) => void, microphone: () => MicrophoneOptions}} options `onFile`: the
 *   file changed, or there is none any more
 */
export function mountFileMode({ panel, mixer: mixerPanel, progress, video }, { store, onFile, microphone }) {
  /** @type {FileSource | null} */ let playing = null;
  const place = document.createElement("div");
  panel.append(place);
  const files = mountFilePanel(place, {
    accept: "video/*",
    text: (name) => t(`omni.${name}`, { seconds: formatNumber(VIDEO_MAX_S) }),
    isShown: () => store.get("source") !== "live",
    read: (file) => readVideoFile(file, video),
    describe: ({ name, durationS, widthPx, heightPx }) => `${name} · ${formatClock(durationS)} · ${widthPx} × ${heightPx}`,
    onChange(file, before) {
      if (before) URL.revokeObjectURL(before.url);
      onFile(file?.url ?? null);
      mixer.update();
      draw();
    },
    above: () =>
      iconPills(SOUNDS, {
        label: t("omni.sound"),
        text: (sound) => t(`omni.sound_${sound}`),
        current: store.get("file_sound"),
        choose: (sound) => store.set("file_sound", sound),
      }),
    below: () => slider(store, "file_volume", store.get("file_sound") !== "microphone"),
  });
  /** The mixer is shown only with a file. */
  const draw = () => {
    mixerPanel.hidden = files.file() === null || store.get("source") === "live";
    files.draw();
  };
  on(store, "change", draw);
  draw();
  const callLevels = () => playing?.mixer.levels ?? null;
  const mixer = mountMixerPanel(mixerPanel, { store, file: files.file, microphone, callLevels });
  for (const root of [panel, mixerPanel]) bindSettings(root, store);
  const mix = () => mixSettingsOf(store, mixer.microphoneLufs(), "file_volume");
  on(store, "change", () => playing?.mixer.set(mix()));
  /** @param {FileSource | null} source whose progress is shown; null: none */
  const follow = (source) => {
    playing = source;
    progress.hidden = source === null;
    progress.value = 0;
    mixer.update();
  };
  return {
    file: files.file,
    askForFile: files.askForFile,
    async show() {
      const file = files.file();
      if (file) await showVideo(video, file.url);
    },
    async open() {
      const file = files.file();
      if (!file) throw new Error("no file was chosen");
      await mixer.close();
      const source = await openVideoSource({
        sound: file.sound,
        video,
        mix: mix(),
        microphone: microphone(),
        paddingBeforeS: store.get("pad_before_s"),
        paddingAfterS: store.get("pad_after_s"),
      });
      source.on("progress", ({ elapsedS, totalS }) => {
        progress.max = totalS;
        progress.value = elapsedS;
      });
      follow(source);
      return source;
    },
    release: () => follow(null),
  };
}

// The mixer: loudness of file and voice, with measurement, trim and preview.

/** @type {readonly ["file" | "microphone" | "mix", string, ("listen" | "speak")?][]} */ const METERS = [
  ["file", "film"],
  ["microphone", "mic"],
  ["mix", "speaker", "speak"],
];

/** @param {OmniStore} store @param {keyof OmniStore["fields"]} setting @param {boolean} isShown */
const slider = (store, setting, isShown) =>
  html`<div ?hidden=${!isShown}>${settingRow("omni", setting, store.fields[setting])}</div>`;

/**
 * Its settings have to be bound afterwards.
 * @param {HTMLDetailsElement} el
 * @param {{store: OmniStore, file: () => VideoFile | null, microphone: () => MicrophoneOptions, callLevels: () => MixLevels |
 *   null}} options `callLevels`: of the running call's mixer
 */
function mountMixerPanel(el, options) {
  const { store, file } = options;
  let microphoneLufs = -Infinity;
  /** @type {MixerBench | null} */ let bench = null;
  /** @type {"idle" | "measuring" | "recording" | "recorded" | "playing"} */ let doing = "idle";
  let problem = "";
  /** @param {string} action @param {string} sign @param {string} key @param {boolean} isOff @param {() => void} run */
  const button = (action, sign, key, isOff, run) => textButton(t(`omni.${key}`), run, { sign, action, isOff });
  const buttons = (/** @type {boolean} */ hasVoice) => {
    const [isBusy, isRecording, isPlaying] = ["measuring", "recording", "playing"].map((one) => doing === one);
    const measure = () => void use("measuring", measureVoice);
    const record = () => (isRecording ? bench?.finish() : void use("recording", recordMix));
    const play = () => (isPlaying ? bench?.stopPlaying() : void playMix());
    const [recordKey, playKey] = [isRecording ? "preview_stop" : "preview_record", isPlaying ? "preview_stop" : "preview_play"];
    const isIdle = doing === "idle" || doing === "recorded";
    return [
      hasVoice ? button("measure", "mic", isBusy ? "measuring" : "measure", !isIdle, measure) : "",
      button("preview-record", isRecording ? "stop" : "record", recordKey, isBusy || isPlaying, record),
      button("preview-play", isPlaying ? "stop" : "play", playKey, doing !== "recorded" && !isPlaying, play),
    ];
  };
  const meters = METERS.map(([name, sign, kind]) => {
    const row = document.createElement("div");
    return { name, row, ...mountLevelMeter(row, { labelKey: `omni.meter_${name}`, sign, kind }) };
  });
  const draw = mountView(el, () => {
    const sound = store.get("file_sound");
    const [hasFile, hasVoice] = [sound !== "microphone", sound !== "file"];
    const isIdle = options.callLevels() === null; // not during a call
    el.dataset.doing = doing;
    [hasFile, hasVoice].forEach((isShown, at) => (meters[at].row.hidden = !isShown));
    return html`<summary>${icon("settings")}<span>${t("omni.mixer")}</span></summary>
      <div class="stack-tight">
        <p class="small soft number" role="status">${loudnessText(sound, file()?.lufs ?? -Infinity, microphoneLufs)}</p>
        <div class="mixer-meters">${meters.map(({ row }) => row)}</div>
        ${slider(store, "trim_file_db", hasFile)} ${slider(store, "trim_microphone_db", hasVoice)}
        ${slider(store, "monitor_volume", isIdle)}
        <div class="row" ?hidden=${!isIdle}>${buttons(hasVoice)}</div>
        <p class="field-error" role="alert" .textContent=${problem}></p>
      </div>`;
  });
  let frame = 0;
  const drawMeters = (/** @type {number} */ nowMs) => {
    frame = 0;
    const levels = bench?.mixer.levels ?? options.callLevels();
    const areMoving = meters.map(({ name, update }) => update(levels?.[name] ?? 0, nowMs)).includes(true);
    if (levels || areMoving) follow();
  };
  const follow = () => {
    if (el.open && frame === 0) frame = requestAnimationFrame(drawMeters);
  };
  const closeBench = async () => {
    const open = bench;
    [bench, doing] = [null, "idle"];
    await open?.close();
    draw();
  };
  const use = async (/** @type {"measuring" | "recording"} */ what, /** @type {(bench: MixerBench) => Promise<void>} */ run) => {
    await closeBench();
    [doing, problem] = [what, ""];
    draw();
    try {
      const opened = await MixerBench.open({
        mix: mixSettingsOf(store, microphoneLufs, "monitor_volume"),
        sound: file()?.sound ?? null,
        microphone: options.microphone(),
      });
      if (doing !== what) return void opened.close(); // a call has started meanwhile
      bench = opened;
      follow();
      await run(opened);
    } catch (reason) {
      problem = problemWords(reason);
      await closeBench();
    }
  };
  const measureVoice = async (/** @type {MixerBench} */ open) => {
    microphoneLufs = await open.measure();
    problem = Number.isFinite(microphoneLufs) ? "" : t("omni.measured_nothing");
    await closeBench();
  };
  const recordMix = async (/** @type {MixerBench} */ open) => {
    const lengthS = await open.record();
    if (bench !== open) return;
    doing = lengthS > 0 ? "recorded" : "idle";
    draw();
  };
  const playMix = async () => {
    doing = "playing";
    draw();
    await bench?.play();
    if (doing === "playing") doing = "recorded";
    draw();
  };
  const update = () => {
    if (bench) bench.mixer.set(mixSettingsOf(store, microphoneLufs, "monitor_volume"));
    follow();
    draw();
  };
  el.addEventListener("toggle", follow);
  store.addEventListener("change", update);
  return { microphoneLufs: () => microphoneLufs, update, close: closeBench };
}
