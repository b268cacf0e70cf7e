// @ts-check
/**
 * What the stage of a half-duplex call shows for its state.
 */

import { t } from "../../shared/i18n.js";
import { halfMoodOf, orbMoodOf } from "../lib/half-look.js";
import { mountStageFrame } from "./stage-frame.js";

/** @typedef {import("../lib/half-duplex-state.js").HalfState} HalfState */
/** @typedef {import("../lib/half-look.js").HalfMood} HalfMood */

/** @type {Readonly<Record<HalfMood, string>>} */
const ICONS = Object.freeze({
  idle: "turns", connecting: "clock", waiting: "clock", preparing: "sparkle", listening: "mic", hearing: "wave",
  thinking: "sparkle", speaking: "speaker", interrupted: "hand", settling: "mic-off", stopping: "stop", ended: "check",
});

/**
 * @param {HTMLElement} el
 * @param {{levels: () => {inputRms: number, outputRms: number}, nowMs?: () => number}} options
 */
export function mountHalfStage(el, { levels, nowMs = () => performance.now() }) {
  /** @type {HalfState | null} */
  let state = null;
  let isMuted = false;
  const draw = () => {
    if (!state) return;
    const mood = halfMoodOf(state);
    const isHushed = isMuted && (mood === "listening" || mood === "hearing");
    el.dataset.activity = mood;
    frame.show({
      mood: orbMoodOf(mood),
      sign: ICONS[mood],
      word: t(`half.mood.${mood}`),
      hint: t(isHushed ? "half.hint.muted" : `half.hint.${mood}`),
    });
  };
  const lengthMs = () => {
    const startMs = state?.preparedAtMs ?? null;
    return startMs === null ? null : (state?.endedAtMs ?? nowMs()) - startMs;
  };
  const frame = mountStageFrame(el, { levels, lengthMs, onLang: draw });
  return {
    /** @param {HalfState} next @param {boolean} isMicMuted */
    update(next, isMicMuted) {
      state = next;
      isMuted = isMicMuted;
      draw();
    },
    close: frame.close,
  };
}
