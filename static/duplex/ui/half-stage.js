// @ts-check
/**
 * What the stage of a half-duplex call shows for its state.
 */

import { t } from "../../shared/i18n.js";
import { halfCallStateOf, orbStateOf } from "../lib/half-look.js";
import { mountStageFrame } from "./stage-frame.js";

/** @typedef {import("../lib/half-duplex-state.js").HalfState} HalfState */
/** @typedef {import("../lib/half-look.js").HalfCallState} HalfCallState */

/** @type {Readonly<Record<HalfCallState, string>>} */
const ICONS = Object.freeze({
  idle: "turns",
  connecting: "clock",
  waiting: "clock",
  preparing: "sparkle",
  listening: "mic",
  hearing: "wave",
  thinking: "sparkle",
  speaking: "speaker",
  interrupted: "hand",
  settling: "mic-off",
  stopping: "stop",
  ended: "check",
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
    const callState = halfCallStateOf(state);
    const isHushed = isMuted && (callState === "listening" || callState === "hearing");
    el.dataset.activity = callState;
    frame.show({
      callState: orbStateOf(callState),
      sign: ICONS[callState],
      word: t(`half.state.${callState}`),
      hint: t(isHushed ? "half.hint.muted" : `half.hint.${callState}`),
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
