// @ts-check
/**
 * Where the user's sound comes from: the microphone, a file, or both.
 */

import { fill, h, icon, on, setText } from "../../shared/dom.js";
import { formatClock, formatNumber } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { rms } from "../../shared/pcm.js";
import { AUDIO_MAX_S, PADDING_MAX_S } from "../lib/source-limits.js";
import { barsOf } from "../lib/user-turns.js";
import { mountChoiceRow } from "./choice-row.js";

/** @typedef {import("../../shared/settings-store.js").NumberField} NumberField */
/** @typedef {import("../../shared/settings-store.js").ChoiceField} ChoiceField */

const KIND_ICONS = Object.freeze({ mic: "mic", file: "file", mix: "plus" });
const BARS = 96;
const PIECE_SAMPLES = 800; // 50 ms
const DECODE_RATE_HZ = 16_000;
const FILE_CODES = new Set(["undecodable", "too_long", "empty"]);

/** @param {number} initial @returns {NumberField} */
const padding = (initial) => ({ type: "number", initial, min: 0, max: PADDING_MAX_S, step: 1 });

/** Settings this choice keeps. */
export const SOURCE_FIELDS = Object.freeze({
  source: /** @type {ChoiceField} */ ({ type: "choice", initial: "mic", choices: Object.keys(KIND_ICONS) }),
  pad_before_s: padding(0),
  pad_after_s: padding(2),
});

/** @typedef {{get: (name: keyof typeof SOURCE_FIELDS) => unknown, set: (name: "source", value: string) => void} & EventTarget} SourceStore */

/**
 * Its inputs carry `data-setting`: bind the settings on a root around it afterwards.
 *
 * @param {HTMLElement} el
 * @param {SourceStore} store
 * @returns {{sound: () => AudioBuffer | null, askForFile: () => void}}
 */
export function mountSourceChoice(el, store) {
  /** @type {{name: string, sound: AudioBuffer} | null} */
  let chosen = null;
  let problem = "";
  let isDecoding = false;
  const group = h("div");
  const input = h("input", { type: "file", accept: "audio/*,video/mp4,video/webm", hidden: true, tabindex: -1 });
  const choose = h("button", { type: "button", class: "button", on: { click: () => input.click() } });
  const about = h("p", { class: "small", role: "status" });
  const wave = h("div", { class: "file-wave", "aria-hidden": "true" });
  const error = h("p", { class: "field-error", role: "alert" });
  const labels = { before: h("label", { for: "pad-before" }), after: h("label", { for: "pad-after" }) };
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
  const box = h("div", { class: "file-box" }, h("div", { class: "row" }, choose, input, about), wave, error, paddings);
  el.append(group, box);
  mountChoiceRow(group, {
    store,
    setting: "source",
    choices: KIND_ICONS,
    labelKey: "adx.source",
    textOf: (kind) => t(`adx.source_${kind}`),
  });

  const draw = () => {
    box.hidden = store.get("source") === "mic";
    fill(choose, icon("upload"), t(chosen ? "adx.other_file" : "adx.choose_file"));
    setText(about, aboutText());
    setText(error, problem && t(`adx.file_${problem}`, { minutes: formatNumber(AUDIO_MAX_S / 60) }));
    setText(labels.before, t("adx.pad_before"));
    setText(labels.after, t("adx.pad_after"));
  };
  const aboutText = () => {
    if (isDecoding) return t("common.loading");
    if (!chosen) return t("adx.file_hint", { minutes: formatNumber(AUDIO_MAX_S / 60) });
    return `${chosen.name} · ${formatClock(chosen.sound.duration)}`;
  };
  /** @param {File} file */
  const take = async (file) => {
    [problem, isDecoding] = ["", true];
    draw();
    try {
      const { decodeSound } = await import("../lib/file-source.js");
      const sound = await decodeSound(file, new OfflineAudioContext(1, 1, DECODE_RATE_HZ));
      chosen = { name: file.name, sound };
      drawWave(wave, sound);
    } catch (reason) {
      const { code } = /** @type {{code?: string}} */ (reason);
      problem = code && FILE_CODES.has(code) ? code : "undecodable";
    }
    isDecoding = false;
    draw();
  };
  on(input, "change", () => {
    const [file] = input.files ?? [];
    if (file) void take(file);
    input.value = ""; // the same file may be chosen again
  });
  listenForDrops(box, (file) => void take(file));
  on(store, "change", draw);
  onLangChange(draw);
  draw();
  return {
    sound: () => chosen?.sound ?? null,
    askForFile() {
      problem = "missing";
      draw();
      choose.focus();
    },
  };
}

/**
 * @param {HTMLElement} el
 * @param {(file: File) => void} take
 */
function listenForDrops(el, take) {
  el.addEventListener("dragover", (event) => event.preventDefault());
  el.addEventListener("drop", (event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file) take(file);
  });
}

/**
 * @param {HTMLElement} el
 * @param {AudioBuffer} sound
 */
function drawWave(el, sound) {
  const samples = sound.getChannelData(0);
  const levels = [];
  for (let at = 0; at < samples.length; at += PIECE_SAMPLES) levels.push(rms(samples.subarray(at, at + PIECE_SAMPLES)));
  const strokes = barsOf(levels, BARS).map((bar) => {
    const stroke = h("i", {});
    stroke.style.setProperty("--height", bar.toFixed(2));
    return stroke;
  });
  fill(el, strokes);
}
