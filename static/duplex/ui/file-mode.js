/** A video file as the source of a call: selection, mixer, playback. Loaded on demand. */

import { find, html, icon, mountView, on, setText, textButton } from "../../shared/lit.js";
import { formatClock, formatNumber, problemWords, t } from "../../shared/texts.js";
import { mixSettingsOf } from "../lib/call-settings.js";
import { bindSettings, radioPills } from "../../shared/settings-form.js";
import { openVideoSource, readVideoFile, showVideo, VIDEO_MAX_S } from "../lib/file-source.js";
import { automaticGains, openMixerBench } from "../lib/mixer-controller.js";
import { mountFileBox } from "./source-choice.js";

/** @import { LiveSource } from "../../../types/duplex.js" */
/** @import { FileSource } from "../lib/file-source.js" */
/** @import { MicrophoneOptions, VideoFile } from "../../../types/devices.js" */
/** @import { MixerBench, MixLevels, MixMode } from "../lib/mixer-controller.js" */
/** @import { OmniStore } from "../lib/call-settings.js" */

/** @typedef {{panel: HTMLElement, mixer: HTMLDetailsElement, progress: HTMLProgressElement, video: HTMLVideoElement}} FileModeParts */

/**
 * @param {FileModeParts} parts
 * @param {{store: OmniStore, onFile: (url: string | null) => void, microphone: () => MicrophoneOptions}} options `onFile`: the
 *   file changed, or there is none any more
 */
export function mountFileMode({ panel, mixer: mixerPanel, progress, video }, { store, onFile, microphone }) {
  /** @type {FileSource | null} */ let playing = null;
  const files = mountFilePanel(panel, {
    store,
    video,
    mixer: mixerPanel,
    progress,
    onFile: (file) => (onFile(file?.url ?? null), mixer.update()),
  });
  const mixer = mountMixerPanel(mixerPanel, {
    store,
    file: () => files.file(),
    microphone,
    callLevels: () => playing?.mixer.levels ?? null,
  });
  for (const root of [panel, mixerPanel]) bindSettings(root, store);
  const mix = () => mixSettingsOf(store, mixer.microphoneLufs(), "file_volume");
  on(store, "change", () => {
    if (playing) playing.mixer.set(mix());
  });
  return {
    ...files,
    async open() {
      const file = files.file();
      if (!file) throw new Error("no file was chosen");
      await mixer.close();
      playing = await openVideoSource({
        sound: file.sound,
        video,
        mix: mix(),
        microphone: microphone(),
        paddingBeforeS: store.get("pad_before_s"),
        paddingAfterS: store.get("pad_after_s"),
      });
      files.follow(playing);
      mixer.update();
      return playing;
    },
    release() {
      playing = null;
      files.follow(null);
      mixer.update();
    },
  };
}

// Selection of the file, its audio and padding.

const SOUNDS = Object.freeze({ file: "film", microphone: "mic", both: "plus" });
const FILE_CODES = new Set(["undecodable", "too_long", "empty", "no_picture"]);

/**
 * Its inputs carry `data-setting` and have to be bound afterwards.
 * @param {HTMLElement} el
 * @param {{store: OmniStore, video: HTMLVideoElement, onFile: (file: VideoFile | null) => void, mixer: HTMLElement, progress: HTMLProgressElement}} options
 *   `mixer` is shown only with a file; `progress` shows the playback position
 * @returns {{file: () => VideoFile | null, show: () => Promise<void>, askForFile: () => void, follow: (source: EventTarget | null) => void}}
 */
function mountFilePanel(el, { store, video, onFile, mixer, progress }) {
  /** @type {VideoFile | null} */ let chosen = null;
  let problem = "";
  let isReading = false;
  const seconds = () => ({ seconds: formatNumber(VIDEO_MAX_S) });
  const aboutText = () => {
    if (isReading) return t("common.loading");
    if (!chosen) return t("omni.file_hint", seconds());
    const { name, durationS, widthPx, heightPx } = chosen;
    return `${name} · ${formatClock(durationS)} · ${widthPx} × ${heightPx}`;
  };
  const place = document.createElement("div");
  el.append(place);
  const box = mountFileBox(place, {
    accept: "video/*",
    take: (file) => void take(file),
    look: () => ({
      isShown: store.get("source") !== "live",
      choose: t(chosen ? "adx.other_file" : "omni.choose_file"),
      about: aboutText(),
      problem: problem && t(`omni.file_${problem}`, seconds()),
      sounds: radioPills({
        label: t("omni.sound"),
        style: "source-choice",
        pills: Object.entries(SOUNDS).map(([value, sign]) => ({ value, text: t(`omni.sound_${value}`), icon: sign })),
        current: store.get("file_sound"),
        choose: (sound) => store.set("file_sound", sound),
      }),
      more: slider("file_volume", store.get("file_sound") !== "microphone"),
    }),
  });
  const draw = () => {
    mixer.hidden = chosen === null || store.get("source") === "live";
    box.draw();
  };
  const take = async (/** @type {File} */ file) => {
    if (isReading) return;
    [problem, isReading] = ["", true];
    draw();
    const before = chosen;
    chosen = null;
    onFile(null);
    if (before) URL.revokeObjectURL(before.url);
    try {
      chosen = await readVideoFile(file, video);
    } catch (reason) {
      const { code } = /** @type {{code?: string}} */ (reason);
      problem = code && FILE_CODES.has(code) ? code : "undecodable";
    }
    isReading = false;
    onFile(chosen);
    draw();
  };
  on(store, "change", draw);
  draw();
  return {
    file: () => chosen,
    async show() {
      if (chosen) await showVideo(video, chosen.url);
    },
    askForFile() {
      problem = "missing";
      draw();
      box.focus();
    },
    /** Shows the playback position of a source; null: none. */
    follow(source) {
      progress.hidden = source === null;
      progress.value = 0;
      if (!source) return;
      on(source, "progress", (/** @type {CustomEvent<{elapsedS: number, totalS: number}>} */ { detail }) => {
        progress.max = detail.totalS;
        progress.value = detail.elapsedS;
      });
    },
  };
}

// The mixer: loudness of file and voice, with measurement, trim and preview.

const FLOOR_DB = -60;
/** @typedef {"file" | "microphone" | "mix"} MeterName */

const meterRow = (/** @type {MeterName} */ name, /** @type {boolean} */ isShown) =>
  html`<div class="mixer-meter" data-meter=${name} ?hidden=${!isShown}>
    <span class="small">${t(`omni.meter_${name}`)}</span
    ><span
      class="meter-track"
      role="meter"
      aria-valuemin=${FLOOR_DB}
      aria-valuemax="0"
      aria-valuenow=${FLOOR_DB}
      aria-label=${t(`omni.meter_${name}`)}
      ><span class="meter-bar"></span></span
    ><span class="meter-value small number soft" aria-hidden="true"></span>
  </div>`;

/** Updated in place, since it changes with each frame. @param {HTMLElement} row @param {number} levelDb */
function showLevel(row, levelDb) {
  const track = find(row, ".meter-track", HTMLElement);
  find(row, ".meter-bar", HTMLElement).style.setProperty("--level", String(1 - levelDb / FLOOR_DB));
  const rounded = String(Math.round(levelDb));
  if (track.getAttribute("aria-valuenow") === rounded) return;
  track.setAttribute("aria-valuenow", rounded);
  setText(find(row, ".meter-value", HTMLElement), `${formatNumber(Math.round(levelDb))} dB`);
}

export const slider = (/** @type {string} */ setting, /** @type {boolean} */ isShown) =>
  html`<div class="field field-row" ?hidden=${!isShown}>
    <label for="slider-${setting}">${t(`omni.${setting}`)}</label><output class="number" data-value-of=${setting}></output>
    <input type="range" id="slider-${setting}" data-setting=${setting} />
  </div>`;

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
    const record = () => (isRecording ? bench?.mixer.finishPreview() : void use("recording", recordMix));
    const play = () => (isPlaying ? bench?.mixer.stopPreview() : void playMix());
    const [recordKey, playKey] = [isRecording ? "preview_stop" : "preview_record", isPlaying ? "preview_stop" : "preview_play"];
    const isIdle = doing === "idle" || doing === "recorded";
    return [
      hasVoice ? button("measure", "mic", isBusy ? "measuring" : "measure", !isIdle, measure) : "",
      button("preview-record", isRecording ? "stop" : "record", recordKey, isBusy || isPlaying, record),
      button("preview-play", isPlaying ? "stop" : "play", playKey, doing !== "recorded" && !isPlaying, play),
    ];
  };
  const draw = mountView(el, () => {
    const sound = store.get("file_sound");
    const [hasFile, hasVoice] = [sound !== "microphone", sound !== "file"];
    const isIdle = options.callLevels() === null; // not during a call
    el.dataset.doing = doing;
    return html`<summary>${icon("settings")}<span>${t("omni.mixer")}</span></summary>
      <div class="stack-tight">
        <p class="small soft number" role="status">${loudnessText(store, file()?.lufs ?? -Infinity, microphoneLufs)}</p>
        ${meterRow("file", hasFile)}${meterRow("microphone", hasVoice)}${meterRow("mix", true)}
        ${slider("trim_file_db", hasFile)}${slider("trim_microphone_db", hasVoice)}${slider("monitor_volume", isIdle)}
        <div class="row" ?hidden=${!isIdle}>${buttons(hasVoice)}</div>
        <p class="field-error" role="alert" .textContent=${problem}></p>
      </div>`;
  });
  const meters = [...el.querySelectorAll(".mixer-meter")].filter((row) => row instanceof HTMLElement);
  const follow = () => {
    const levels = bench?.mixer.levels ?? options.callLevels();
    const now = [levels?.fileDb, levels?.microphoneDb, levels?.mixDb];
    meters.forEach((meter, at) => showLevel(meter, now[at] ?? FLOOR_DB));
    if ((bench || levels) && el.open) requestAnimationFrame(follow);
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
      const opened = await openMixerBench({
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
    await bench?.mixer.playPreview();
    if (doing === "playing") doing = "recorded";
    draw();
  };
  const update = () => {
    if (bench) bench.mixer.set(mixSettingsOf(store, microphoneLufs, "monitor_volume"));
    if (el.open) follow();
    draw();
  };
  el.addEventListener("toggle", follow);
  store.addEventListener("change", update);
  return { microphoneLufs: () => microphoneLufs, update, close: closeBench };
}

function loudnessText(/** @type {OmniStore} */ store, /** @type {number} */ fileLufs, /** @type {number} */ microphoneLufs) {
  const mode = /** @type {MixMode} */ (store.get("file_sound"));
  const gains = automaticGains(mode, { fileLufs, microphoneLufs });
  const one = (/** @type {string} */ key, /** @type {number} */ lufs, /** @type {number} */ gainDb) =>
    Number.isFinite(lufs)
      ? t(`omni.loudness_${key}`, { lufs: formatNumber(lufs, 1), gain: `${gainDb > 0 ? "+" : ""}${formatNumber(gainDb, 1)}` })
      : t(`omni.loudness_${key}_none`);
  return [
    mode !== "microphone" && one("file", fileLufs, gains.fileDb),
    mode !== "file" && one("voice", microphoneLufs, gains.microphoneDb),
  ]
    .filter(Boolean)
    .join(" · ");
}
