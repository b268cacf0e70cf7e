// @ts-check
/**
 * What the stage of a full-duplex call shows for its state.
 */

import { t } from "../../shared/i18n.js";
import { callStateOf } from "../lib/call-state.js";
import { runningMs } from "../lib/session-state.js";
import { mountStageFrame } from "./stage-frame.js";

/** @typedef {import("../lib/session-state.js").SessionState} SessionState */
/** @typedef {import("../lib/call-state.js").CallState} CallState */

/** @type {Readonly<Record<CallState, string>>} */
const STATE_ICONS = Object.freeze({
  idle: "mic",
  connecting: "clock",
  waiting: "clock",
  preparing: "sparkle",
  listening: "mic",
  thinking: "sparkle",
  speaking: "speaker",
  interrupted: "hand",
  pausing: "pause",
  paused: "pause",
  stopping: "stop",
  ended: "check",
});

/**
 * @param {HTMLElement} el
 * @param {{levels: () => {inputRms: number, outputRms: number}, nowMs?: () => number, hintFor?: (state: SessionState) => string | null}} options
 *   `hintFor` may give its own line of help
 * @returns {{update: (state: SessionState, isMuted: boolean) => void, close: () => void}}
 */
export function mountStage(el, { levels, nowMs = () => performance.now(), hintFor = () => null }) {
  /** @type {SessionState | null} */
  let state = null;
  let isMuted = false;
  const draw = () => {
    if (!state) return;
    const callState = callStateOf(state);
    const isBroken = callState === "ended" && state.end?.isByUser === false;
    frame.show({
      callState,
      sign: isBroken ? "warning" : STATE_ICONS[callState],
      word: t(`live.state.${callState}`),
      hint: hintFor(state) ?? (isBroken ? t("live.hint.broken") : defaultHint(callState, isMuted)),
    });
  };
  const lengthMs = () => (state?.preparedAtMs ? runningMs(state, nowMs()) : null);
  const frame = mountStageFrame(el, { levels, lengthMs, onLang: draw });
  return {
    update(next, muted) {
      state = next;
      isMuted = muted;
      draw();
    },
    close: frame.close,
  };
}

/**
 * @param {CallState} callState
 * @param {boolean} isMuted
 */
function defaultHint(callState, isMuted) {
  if (isMuted && (callState === "listening" || callState === "speaking")) return t("live.hint.muted");
  return t(`live.hint.${callState}`);
}
