// @ts-check
/** What a call is doing, in the one word that orb, state line, title and buttons share. Pure. */

import { formatClock } from "../../shared/formats.js";
import { t } from "../../shared/texts.js";

/** @import { EndReason } from "../../shared/server-messages.js" */
/** @import { HalfState, Phase, SessionState } from "./session-state.js" */

/**
 * @typedef {"idle" | "connecting" | "waiting" | "preparing" | "listening" | "thinking" | "speaking"
 *   | "interrupted" | "pausing" | "paused" | "stopping" | "ended"} CallState
 */

/** Which colour token each callState wears, without the dashes. */
export const STATE_COLOURS = Object.freeze({
  idle: "accent",
  connecting: "wait",
  waiting: "wait",
  preparing: "wait",
  listening: "listen",
  thinking: "listen",
  speaking: "speak",
  interrupted: "interrupt",
  pausing: "idle",
  paused: "idle",
  stopping: "idle",
  ended: "idle",
});

/** @param {Phase} phase */
function stateOfPhase(phase) {
  if (phase === "queued") return "waiting";
  return phase === "running" ? "listening" : phase;
}

/** @param {Pick<SessionState, "phase" | "activity">} state @returns {CallState} */
export function callStateOf({ phase, activity }) {
  if (phase === "running" && activity !== "none") return activity;
  return stateOfPhase(phase);
}

/** Which buttons make sense now. @param {Pick<SessionState, "phase" | "activity">} state */
export function controlsFor(state) {
  const { phase } = state;
  const isTalk = phase === "running" || phase === "pausing" || phase === "paused";
  return {
    canStart: phase === "idle" || phase === "ended",
    canStop: phase === "connecting" || phase === "queued" || phase === "preparing" || isTalk,
    canResume: phase === "pausing" || phase === "paused",
    canInterrupt: phase === "running" && state.activity === "speaking",
    isTalk,
  };
}

// What a half-duplex page shows for a state: the word, the colour, the buttons.

/** @typedef {"idle" | "connecting" | "waiting" | "preparing" | "listening" | "hearing" | "thinking"
 *   | "speaking" | "interrupted" | "settling" | "stopping" | "ended"} HalfCallState
 */

/** @param {Pick<HalfState, "phase" | "activity">} state @returns {HalfCallState} */
export function halfCallStateOf({ phase, activity }) {
  if (phase === "running" && activity !== "none") return activity;
  return /** @type {HalfCallState} */ (stateOfPhase(phase)); // half duplex has no pause
}

/** How the orb, which knows the states of full duplex, is to look. @param {HalfCallState} callState @returns {CallState} */
export function orbStateOf(callState) {
  if (callState === "hearing") return "listening";
  return callState === "settling" ? "pausing" : callState;
}

/** @param {Pick<HalfState, "phase" | "activity">} state @param {boolean} isStarting devices are being opened */
export function halfControlsFor({ phase, activity }, isStarting) {
  const isTalk = phase === "running";
  const isOver = phase === "idle" || phase === "ended";
  return {
    canStart: isOver && !isStarting,
    canStop: isStarting || (!isOver && phase !== "stopping"),
    isStopShown: isStarting || !isOver,
    canInterrupt: isTalk && (activity === "thinking" || activity === "speaking"),
    isTalk,
  };
}

// Which sentence tells the user why a live call does not continue, and what may be tried next.

/**
 * @typedef {"restart" | "retry" | "reconnect" | "home" | "check" | "camera" | "file" | "voice"} NextStep `retry`
 *   is the same as `restart` before a call began, `reconnect` opens the microphone again, `camera` the
 *   camera; `file` and `voice` do without one
 *
 * @typedef {Object} LiveProblem
 * @property {string} code of a text `problem.CODE`
 * @property {string} message the server's own words, or ""
 * @property {"bad" | "caution"} kind
 * @property {NextStep[]} steps buttons to offer, best first
 */

/** @type {Readonly<Record<string, string>>} */
const TIMEOUT_CODES = Object.freeze({ pause: "pause_timeout", max_session: "max_session", inactivity: "timeout" });

/** Ends that are no failure. @type {ReadonlySet<string>} */
const EXPECTED = new Set(["kv_limit", "context_full", "ended_by_admin", "timeout", "queue_cancelled"]);

/** A microphone that may be there in a moment. @type {ReadonlySet<string>} */
export const DEVICE_CODES = new Set(["permission_denied", "no_microphone", "busy", "unplugged"]);

/** Codes of a microphone that delivers nothing useful. @type {ReadonlySet<string>} */
const MILD_CODES = new Set([
  "reconnecting",
  "reconnected",
  "silent_microphone",
  "sink_refused",
  "sound_suspended",
  "late_chunk",
  "upload_slow",
  "context_nearly_full",
  "no_captions",
  "one_voice",
  "voice_cut",
]);

/** Why a session ended, as a problem; null if the user wanted it. @param {EndReason} reason @returns {LiveProblem | null} */
export function problemOfEnd(reason) {
  if (reason.isByUser) return null;
  const code = reason.code === "timeout" ? (TIMEOUT_CODES[reason.detail] ?? "timeout") : reason.code;
  /** @type {NextStep[]} */
  const steps = reason.canRestart ? ["restart"] : [];
  if (code === "app_disabled") steps.push("home");
  return { code, message: reason.message, kind: EXPECTED.has(reason.code) ? "caution" : "bad", steps };
}

/** @param {unknown} error @param {boolean} isInCall @returns {LiveProblem} */
export function problemOfDevice(error, isInCall) {
  const known = /** @type {{code?: unknown, message?: unknown} | null} */ (error);
  const code = typeof known?.code === "string" ? known.code : "unsupported";
  const message = typeof known?.message === "string" ? known.message : "";
  if (code.startsWith("camera_")) {
    return { code, message, kind: isInCall ? "caution" : "bad", steps: isInCall ? ["camera"] : ["retry", "file", "voice"] };
  }
  const again = isInCall ? "reconnect" : "retry";
  /** @type {NextStep[]} */
  const steps = DEVICE_CODES.has(code) ? [again, "check"] : code === "missing_part" ? [again] : [];
  return { code, message, kind: "bad", steps };
}

/** A problem that does not end the call. @param {string} code @returns {LiveProblem} */
export function warningOf(code) {
  return { code, message: "", kind: MILD_CODES.has(code) ? "caution" : "bad", steps: [] };
}

// What the stage and the queue before the call say.

export const STATE_ICONS = Object.freeze({
  idle: "mic",
  connecting: "clock",
  waiting: "clock",
  preparing: "sparkle",
  listening: "mic",
  hearing: "wave",
  thinking: "sparkle",
  speaking: "speaker",
  interrupted: "hand",
  settling: "mic-off",
  pausing: "pause",
  paused: "pause",
  stopping: "stop",
  ended: "check",
});

/** @param {SessionState} state */
export function stopKey({ phase, preparedAtMs }) {
  if (phase === "queued") return "queue.cancel";
  return preparedAtMs === null ? "common.cancel" : "live.stop";
}

/** @param {CallState} callState @param {boolean} isMuted */
export function defaultHint(callState, isMuted) {
  if (isMuted && (callState === "listening" || callState === "speaking")) return t("live.hint.muted");
  return t(`live.hint.${callState}`);
}

/** While the gate holds the answer the model listens already. @param {SessionState} state @returns {SessionState} */
export function heldState(state) {
  return state.activity === "speaking" ? { ...state, activity: "listening" } : state;
}

/** @param {SessionState} state */
export function pauseHint(state) {
  if (state.phase !== "paused" || state.pauseEndsAtMs === null) return null;
  if (state.isAutoPaused) return t("live.hint.paused_auto");
  return t("live.hint.paused", { time: formatClock(state.pauseTimeoutS) });
}
