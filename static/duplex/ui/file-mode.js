// @ts-check
/** A video file as the source of a call: choosing it, its mixer, playing it. Loaded when first wanted. */

import { on } from "../../shared/dom.js";
import { formatClock, formatNumber } from "../../shared/formats.js";
import { t } from "../../shared/i18n.js";
import { radioPills } from "../../shared/pills.js";
import { bindSettings } from "../../shared/settings-form.js";
import { VIDEO_MAX_S } from "../lib/file-source.js";
import { openVideoSource, readVideoFile, setMixer, showVideo } from "../lib/video-file.js";
import { mountFileBox } from "./file-box.js";
import { mountMixerPanel, slider } from "./mixer-panel.js";
import { mixSettingsOf } from "./omni-settings.js";

/**
 * @typedef {Object} FileModeParts
 * @property {HTMLElement} panel
 * @property {HTMLDetailsElement} mixer
 * @property {HTMLProgressElement} progress
 * @property {HTMLVideoElement} video
 */

/**
 * @typedef {Object} FileModeOptions
 * @property {import("./omni-settings.js").OmniStore} store
 * @property {(url: string | null) => void} onFile another file is shown, or none
 * @property {() => import("../lib/microphone.js").MicrophoneOptions} microphone
 */

/** @param {FileModeParts} parts @param {FileModeOptions} options */
export function mountFileMode({ panel, mixer: mixerPanel, progress, video }, { store, onFile, microphone }) {
  /** @type {import("../lib/file-source.js").FileSource | null} */
  let playing = null;
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
    if (playing) setMixer(playing.mixer, mix());
  });
  return {
    get hasFile() {
      return files.file() !== null;
    },
    askForFile: files.askForFile,
    /** Show the file where the camera was. */
    show: files.show,
    /** @returns {Promise<import("../lib/duplex-types.js").LiveSource>} */
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
    /** The call is over. */
    release() {
      playing = null;
      files.follow(null);
      mixer.update();
    },
  };
}

// A video file in place of the camera: choose it, which sound goes with it, silence around it.

/** @typedef {import("../lib/video-file.js").VideoFile} VideoFile */
/** @typedef {import("./omni-settings.js").OmniStore} OmniStore */

const SOUNDS = Object.freeze({ file: "film", microphone: "mic", both: "plus" });
const FILE_CODES = new Set(["undecodable", "too_long", "empty", "no_picture"]);

/**
 * Its inputs carry `data-setting`: bind the settings on a root around it afterwards.
 *
 * @param {HTMLElement} el
 * @param {{store: OmniStore, video: HTMLVideoElement, onFile: (file: VideoFile | null) => void, mixer: HTMLElement, progress: HTMLProgressElement}} options
 *   `mixer` is of use only with a file; `progress` shows how far one has played
 * @returns {{file: () => VideoFile | null, show: () => Promise<void>, askForFile: () => void, follow: (source: EventTarget | null) => void}}
 */
export function mountFilePanel(el, { store, video, onFile, mixer, progress }) {
  /** @type {VideoFile | null} */
  let chosen = null;
  let problem = "";
  let isReading = false;
  const aboutText = () => {
    if (isReading) return t("common.loading");
    if (!chosen) return t("omni.file_hint", { seconds: formatNumber(VIDEO_MAX_S) });
    const { name, durationS, widthPx, heightPx } = chosen;
    return `${name} · ${formatClock(durationS)} · ${widthPx} × ${heightPx}`;
  };
  const sounds = () =>
    radioPills({
      label: t("omni.sound"),
      style: "source-choice",
      pills: Object.entries(SOUNDS).map(([value, sign]) => ({ value, text: t(`omni.sound_${value}`), icon: sign })),
      current: store.get("file_sound"),
      choose: (sound) => store.set("file_sound", sound),
    });
  const place = document.createElement("div");
  el.append(place);
  const box = mountFileBox(place, {
    accept: "video/*",
    take: (file) => void take(file),
    look: () => ({
      isShown: store.get("source") !== "live",
      choose: t(chosen ? "adx.other_file" : "omni.choose_file"),
      about: aboutText(),
      problem: problem && t(`omni.file_${problem}`, { seconds: formatNumber(VIDEO_MAX_S) }),
      sounds: sounds(),
      more: slider("file_volume", store.get("file_sound") !== "microphone"),
    }),
  });
  const draw = () => {
    mixer.hidden = chosen === null || store.get("source") === "live";
    box.draw();
  };
  /** @param {File} file */
  const take = async (file) => {
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
    /** Put the file's picture back into the video element. */
    async show() {
      if (chosen) await showVideo(video, chosen.url);
    },
    askForFile() {
      problem = "missing";
      draw();
      box.focus();
    },
    /** Show how far a source has played; null when none does. */
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
