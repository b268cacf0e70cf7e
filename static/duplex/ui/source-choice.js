/** Choice of the user's audio source: microphone, file, or both. */

import { fileButton, find, html, mountView, on } from "../../shared/lit.js";
import { formatClock, formatNumber, t } from "../../shared/texts.js";
import { rms } from "../../shared/pcm.js";
import { AUDIO_MAX_S, PADDING_MAX_S } from "../lib/capture-format.js";
import { radioPills } from "../../shared/settings-form.js";
import { choiceField, numberField } from "../../shared/settings-store.js";
import { barsOf } from "../lib/session-state.js";
import { waveform } from "./live-view.js";

const KIND_ICONS = Object.freeze({ mic: "mic", file: "file", mix: "plus" });
const BARS = 96;
const PIECE_SAMPLES = 800; // 50 ms
const DECODE_RATE_HZ = 16_000;
const FILE_CODES = new Set(["undecodable", "too_long", "empty"]);

export const SOURCE_FIELDS = Object.freeze({
  source: choiceField("mic", Object.keys(KIND_ICONS)),
  pad_before_s: numberField(0, 0, PADDING_MAX_S, 1),
  pad_after_s: numberField(2, 0, PADDING_MAX_S, 1),
});

/** @typedef {{get: (name: keyof typeof SOURCE_FIELDS) => unknown, set: (name: "source", value: string) => void} & EventTarget} SourceStore */

/** Its settings have to be bound afterwards. @param {HTMLElement} el @param {SourceStore} store */
export function mountSourceChoice(el, store) {
  /** @type {{name: string, sound: AudioBuffer} | null} */ let chosen = null;
  let problem = "";
  let isDecoding = false;
  /** @type {readonly number[]} heights of the sound's picture */ let bars = [];
  const minutes = () => ({ minutes: formatNumber(AUDIO_MAX_S / 60) });
  const aboutChosen = () => (chosen ? `${chosen.name} · ${formatClock(chosen.sound.duration)}` : t("adx.file_hint", minutes()));
  const take = async (/** @type {File} */ file) => {
    [problem, isDecoding] = ["", true];
    draw();
    try {
      const { decodeSound } = await import("../lib/file-source.js");
      const sound = await decodeSound(file, new OfflineAudioContext(1, 1, DECODE_RATE_HZ));
      chosen = { name: file.name, sound };
      bars = barsOf(levelsOf(sound), BARS);
    } catch (reason) {
      const { code } = /** @type {{code?: string}} */ (reason);
      problem = code && FILE_CODES.has(code) ? code : "undecodable";
    }
    isDecoding = false;
    draw();
  };
  const [group, place] = [document.createElement("div"), document.createElement("div")];
  el.append(group, place);
  const drawKinds = mountView(group, () =>
    radioPills({
      label: t("adx.source"),
      style: "source-choice",
      pills: Object.entries(KIND_ICONS).map(([value, sign]) => ({ value, text: t(`adx.source_${value}`), icon: sign })),
      current: String(store.get("source")),
      choose: (kind) => store.set("source", kind),
    }),
  );
  const box = mountFileBox(place, {
    accept: "audio/*,video/mp4,video/webm",
    take: (file) => void take(file),
    look: () => ({
      isShown: store.get("source") !== "mic",
      choose: t(chosen ? "adx.other_file" : "adx.choose_file"),
      about: isDecoding ? t("common.loading") : aboutChosen(),
      problem: problem && t(`adx.file_${problem}`, minutes()),
      picture: waveform("file-wave", bars),
    }),
  });
  const draw = () => {
    drawKinds();
    box.draw();
  };
  on(store, "change", draw);
  return {
    sound: () => chosen?.sound ?? null,
    askForFile() {
      problem = "missing";
      draw();
      box.focus();
    },
  };
}

function levelsOf(/** @type {AudioBuffer} */ sound) {
  const samples = sound.getChannelData(0);
  const levels = [];
  for (let at = 0; at < samples.length; at += PIECE_SAMPLES) levels.push(rms(samples.subarray(at, at + PIECE_SAMPLES)));
  return levels;
}

// File box: choose or drop a file; shows its description, problems and padding.

/**
 * @typedef {Object} FileBoxLook
 * @property {boolean} isShown
 * @property {string} choose label of the button
 * @property {string} about
 * @property {string} problem "" if there is none
 * @property {unknown} [picture] waveform of the file
 * @property {unknown} [sounds] choice of its audio
 * @property {unknown} [more]
 */

const paddingField = (/** @type {string} */ id, /** @type {string} */ setting, /** @type {string} */ labelKey) =>
  html`<div class="field"><label for=${id}>${t(labelKey)}</label><input type="number" id=${id} data-setting=${setting} /></div>`;

/**
 * Its inputs carry `data-setting` and have to be bound afterwards.
 * @param {HTMLElement} el
 * @param {{accept: string, take: (file: File) => void, look: () => FileBoxLook}} options
 */
export function mountFileBox(el, { accept, take, look }) {
  el.classList.add("file-box");
  const draw = mountView(el, () => {
    const { isShown, choose, about, problem, picture, sounds, more } = look();
    el.hidden = !isShown;
    return html`<div class="row">
        ${fileButton(choose, take, { accept, sign: "upload", action: "choose-file" })}
        <p class="small" role="status">${about}</p>
      </div>
      ${picture}
      <p class="field-error" role="alert" .textContent=${problem}></p>
      ${sounds}
      <div class="file-padding">
        ${paddingField("pad-before", "pad_before_s", "adx.pad_before")}${paddingField("pad-after", "pad_after_s", "adx.pad_after")}
      </div>
      ${more}`;
  });
  on(el, "dragover", (event) => event.preventDefault());
  on(el, "drop", (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file) take(file);
  });
  return { draw, focus: () => find(el, "button", HTMLElement).focus() };
}
