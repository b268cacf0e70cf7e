/** Choice of the user's audio source (microphone, file, or both), and the panel in which a file is chosen. */

import { fileButton, find, html, mountView, on } from "../../shared/lit.js";
import { codeOf, formatClock, formatNumber, t } from "../../shared/texts.js";
import { rms } from "../../shared/pcm.js";
import { AUDIO_MAX_S, PADDING_MAX_S } from "../lib/capture-format.js";
import { iconPills } from "../../shared/settings-form.js";
import { choiceField, numberField } from "../../shared/settings-store.js";
import { barsOf } from "../lib/session-state.js";
import { waveform } from "./live-view.js";

const KIND_ICONS = Object.freeze({ mic: "mic", file: "file", mix: "plus" });
const BARS = 96;
const PIECE_SAMPLES = 800; // 50 ms

export const SOURCE_FIELDS = Object.freeze({
  source: choiceField("mic", Object.keys(KIND_ICONS)),
  pad_before_s: numberField(0, 0, PADDING_MAX_S, 1),
  pad_after_s: numberField(2, 0, PADDING_MAX_S, 1),
});

/** @typedef {{get: (name: keyof typeof SOURCE_FIELDS) => unknown, set: (name: "source", value: string) => void} & EventTarget} SourceStore */

/** Its settings have to be bound afterwards. @param {HTMLElement} el @param {SourceStore} store */
export function mountSourceChoice(el, store) {
  const [group, place] = [document.createElement("div"), document.createElement("div")];
  el.append(group, place);
  const drawKinds = mountView(group, () =>
    iconPills(KIND_ICONS, {
      label: t("adx.source"),
      text: (kind) => t(`adx.source_${kind}`),
      current: String(store.get("source")),
      choose: (kind) => store.set("source", kind),
    }),
  );
  const panel = mountFilePanel(place, {
    accept: "audio/*,video/mp4,video/webm",
    text: (name) => t(`adx.${name}`, { minutes: formatNumber(AUDIO_MAX_S / 60) }),
    isShown: () => store.get("source") !== "mic",
    async read(file) {
      const { decodeSound } = await import("../lib/file-source.js");
      const sound = await decodeSound(file);
      return { name: file.name, sound, bars: barsOf(levelsOf(sound), BARS) };
    },
    describe: ({ name, sound }) => `${name} · ${formatClock(sound.duration)}`,
    above: (file) => waveform("file-wave", file?.bars ?? []),
  });
  on(store, "change", () => {
    drawKinds();
    panel.draw();
  });
  return { sound: () => panel.file()?.sound ?? null, askForFile: panel.askForFile };
}

function levelsOf(/** @type {AudioBuffer} */ sound) {
  const samples = sound.getChannelData(0);
  const levels = [];
  for (let at = 0; at < samples.length; at += PIECE_SAMPLES) levels.push(rms(samples.subarray(at, at + PIECE_SAMPLES)));
  return levels;
}

// The file panel: choose or drop a file; shows its description, problems and padding.

const paddingField = (/** @type {string} */ id, /** @type {string} */ setting, /** @type {string} */ labelKey) =>
  html`<div class="field"><label for=${id}>${t(labelKey)}</label><input type="number" id=${id} data-setting=${setting} /></div>`;

/**
 * Its inputs carry `data-setting` and have to be bound afterwards.
 * @template Chosen
 * @param {HTMLElement} el
 * @param {Object} options
 * @param {string} options.accept
 * @param {(name: string) => string} options.text `choose_file`, `file_hint`, `file_missing`, and one for each problem
 * @param {() => boolean} options.isShown
 * @param {(file: File) => Promise<Chosen>} options.read rejects with the code of a text `file_CODE`
 * @param {(chosen: Chosen) => string} options.describe
 * @param {(chosen: Chosen | null, before: Chosen | null) => void} [options.onChange] null: a file is being read, or failed
 * @param {(chosen: Chosen | null) => unknown} [options.above] a view above the padding
 * @param {() => unknown} [options.below] and below it
 */
export function mountFilePanel(el, { accept, text, isShown, read, describe, onChange, above, below }) {
  /** @type {Chosen | null} */ let chosen = null;
  let problem = "";
  let isReading = false;
  const about = () => {
    if (isReading) return t("common.loading");
    return chosen ? describe(chosen) : text("file_hint");
  };
  const become = (/** @type {Chosen | null} */ next) => {
    const before = chosen;
    chosen = next;
    onChange?.(chosen, before);
    draw();
  };
  const take = async (/** @type {File} */ file) => {
    if (isReading) return;
    [problem, isReading] = ["", true];
    become(null);
    const next = await read(file).catch((error) => {
      problem = codeOf(error, "undecodable");
      return null;
    });
    isReading = false;
    become(next);
  };
  el.classList.add("file-box");
  const draw = mountView(el, () => {
    el.hidden = !isShown();
    return html`<div class="row">
        ${fileButton(chosen ? t("adx.other_file") : text("choose_file"), take, { accept, sign: "upload", action: "choose-file" })}
        <p class="small" role="status">${about()}</p>
      </div>
      <p class="field-error" role="alert" .textContent=${problem && text(`file_${problem}`)}></p>
      ${above?.(chosen)}
      <div class="file-padding">
        ${paddingField("pad-before", "pad_before_s", "adx.pad_before")}${paddingField("pad-after", "pad_after_s", "adx.pad_after")}
      </div>
      ${below?.()}`;
  });
  on(el, "dragover", (event) => event.preventDefault());
  on(el, "drop", (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file) void take(file);
  });
  return {
    draw,
    file: () => chosen,
    askForFile() {
      problem = "missing";
      draw();
      find(el, "button").focus();
    },
  };
}
