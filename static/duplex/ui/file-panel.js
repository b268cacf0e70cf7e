// @ts-check
/** A video file in place of the camera: choose it, which sound goes with it, silence around it. */

import { on } from "../../shared/dom.js";
import { formatClock, formatNumber } from "../../shared/formats.js";
import { t } from "../../shared/i18n.js";
import { radioPills } from "../../shared/pills.js";
import { VIDEO_MAX_S } from "../lib/file-source.js";
import { readVideoFile, showVideo } from "../lib/video-file.js";
import { mountFileBox } from "./file-box.js";
import { slider } from "./mixer-panel.js";

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
