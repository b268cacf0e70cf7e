// @ts-check
/**
 * A video file in place of the camera: choose it, which sound goes with it, silence around it.
 */

import { fill, h, icon, on, setText } from "../../shared/dom.js";
import { formatClock, formatNumber } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { VIDEO_MAX_S } from "../lib/file-source.js";
import { readVideoFile, showVideo } from "../lib/video-file.js";
import { mountChoiceRow } from "./choice-row.js";

/** @typedef {import("../lib/video-file.js").VideoFile} VideoFile */
/** @typedef {import("./omni-settings.js").OmniStore} OmniStore */

const SOUNDS = Object.freeze({ file: "film", microphone: "mic", both: "plus" });
const FILE_CODES = new Set(["undecodable", "too_long", "empty", "no_picture"]);

/** The box of a file: choose it, what it is, silence around it, how loud one hears it. */
function fileBox() {
  const input = h("input", { type: "file", accept: "video/*", hidden: true, tabindex: -1 });
  const choose = h("button", {
    type: "button",
    class: "button",
    dataset: { action: "choose-file" },
    on: { click: () => input.click() },
  });
  const about = h("p", { class: "small", role: "status" });
  const error = h("p", { class: "field-error", role: "alert" });
  const labels = {
    before: h("label", { for: "pad-before" }),
    after: h("label", { for: "pad-after" }),
    volume: h("label", { for: "file-volume" }),
  };
  const volume = h(
    "div",
    { class: "field field-row" },
    labels.volume,
    h("output", { class: "number", dataset: { valueOf: "file_volume" } }),
    h("input", { type: "range", id: "file-volume", dataset: { setting: "file_volume" } }),
  );
  const paddings = h(
    "div",
    { class: "file-padding" },
    h(
      "div",
      { class: "field" },
      labels.before,
      h("input", { type: "number", id: "pad-before", dataset: { setting: "pad_before_s" } }),
    ),
    h(
      "div",
      { class: "field" },
      labels.after,
      h("input", { type: "number", id: "pad-after", dataset: { setting: "pad_after_s" } }),
    ),
  );
  return { input, choose, about, error, labels, volume, paddings };
}

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
  const sounds = h("div", {});
  mountChoiceRow(sounds, {
    store,
    setting: "file_sound",
    choices: SOUNDS,
    labelKey: "omni.sound",
    textOf: (sound) => t(`omni.sound_${sound}`),
  });
  const { input, choose, about, error, labels, volume, paddings } = fileBox();
  const box = h("div", { class: "file-box" }, h("div", { class: "row" }, choose, input, about), error, sounds, paddings, volume);
  el.append(box);

  const aboutText = () => {
    if (isReading) return t("common.loading");
    if (!chosen) return t("omni.file_hint", { seconds: formatNumber(VIDEO_MAX_S) });
    const { name, durationS, widthPx, heightPx } = chosen;
    return `${name} · ${formatClock(durationS)} · ${widthPx} × ${heightPx}`;
  };
  const draw = () => {
    box.hidden = store.get("source") === "live";
    volume.hidden = store.get("file_sound") === "microphone";
    mixer.hidden = chosen === null || store.get("source") === "live";
    fill(choose, icon("upload"), t(chosen ? "adx.other_file" : "omni.choose_file"));
    setText(about, aboutText());
    setText(error, problem && t(`omni.file_${problem}`, { seconds: formatNumber(VIDEO_MAX_S) }));
    setText(labels.before, t("adx.pad_before"));
    setText(labels.after, t("adx.pad_after"));
    setText(labels.volume, t("omni.file_volume"));
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
  on(input, "change", () => {
    const [file] = input.files ?? [];
    if (file) void take(file);
    input.value = ""; // the same file may be chosen again
  });
  on(box, "dragover", (event) => event.preventDefault());
  on(box, "drop", (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file) void take(file);
  });
  on(store, "change", draw);
  onLangChange(draw);
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
      choose.focus();
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
