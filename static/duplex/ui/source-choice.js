// @ts-check
/** Where the user's sound comes from: the microphone, a file, or both. */

import { on } from "../../shared/dom.js";
import { formatClock, formatNumber } from "../../shared/formats.js";
import { t } from "../../shared/i18n.js";
import { mountView } from "../../shared/lit.js";
import { radioPills } from "../../shared/pills.js";
import { rms } from "../../shared/pcm.js";
import { AUDIO_MAX_S, PADDING_MAX_S } from "../lib/capture-format.js";
import { barsOf } from "../lib/user-turns.js";
import { mountFileBox } from "./file-box.js";
import { waveform } from "./transcript.js";

/** @import { ChoiceField, NumberField } from "../../shared/settings-store.js" */

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
 * @param {HTMLElement} el
 * @param {SourceStore} store
 * @returns {{sound: () => AudioBuffer | null, askForFile: () => void}}
 */
export function mountSourceChoice(el, store) {
  /** @type {{name: string, sound: AudioBuffer} | null} */
  let chosen = null;
  let problem = "";
  let isDecoding = false;
  /** @type {readonly number[]} heights of the sound's picture */
  let bars = [];
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
      about: aboutText(),
      problem: problem && t(`adx.file_${problem}`, { minutes: formatNumber(AUDIO_MAX_S / 60) }),
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

/** @param {AudioBuffer} sound */
function levelsOf(sound) {
  const samples = sound.getChannelData(0);
  const levels = [];
  for (let at = 0; at < samples.length; at += PIECE_SAMPLES) levels.push(rms(samples.subarray(at, at + PIECE_SAMPLES)));
  return levels;
}
