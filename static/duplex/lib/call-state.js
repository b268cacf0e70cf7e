/** The state of a call as shown by orb, state line, title and buttons. Pure. */

import { codeOf, formatClock, MS_PER_S, t } from "../../shared/texts.js";

/** @import { EndReason } from "../../shared/server-messages.js" */
/** @import { HalfState, SessionState } from "./session-state.js" */

/** Looks of each state: colour token without the leading dashes, icon, and motion of the orb. */
export const STATE_LOOKS = Object.freeze({
  idle: { colour: "accent", sign: "mic", isAlive: false, isSearching: false },
  connecting: { colour: "wait", sign: "clock", isAlive: true, isSearching: true },
  waiting: { colour: "wait", sign: "clock", isAlive: true, isSearching: true },
  preparing: { colour: "wait", sign: "sparkle", isAlive: true, isSearching: true },
  listening: { colour: "listen", sign: "mic", isAlive: true, isSearching: false },
  hearing: { colour: "listen", sign: "wave", isAlive: true, isSearching: false }, // in half duplex only
  thinking: { colour: "listen", sign: "sparkle", isAlive: true, isSearching: true },
  speaking: { colour: "speak", sign: "speaker", isAlive: true, isSearching: false },
  interrupted: { colour: "interrupt", sign: "hand", isAlive: true, isSearching: false },
  settling: { colour: "idle", sign: "mic-off", isAlive: false, isSearching: false }, // in half duplex only
  pausing: { colour: "idle", sign: "pause", isAlive: false, isSearching: false }, // in full duplex only
  paused: { colour: "idle", sign: "pause", isAlive: false, isSearching: false }, // in full duplex only
  stopping: { colour: "idle", sign: "stop", isAlive: false, isSearching: true },
  ended: { colour: "idle", sign: "check", isAlive: false, isSearching: false },
});

/** @typedef {keyof typeof STATE_LOOKS} CallState */

/** @typedef {(Pick<SessionState, "phase" | "activity"> | Pick<HalfState, "phase" | "activity">) & {isLost?: boolean}} Doing */

/**
 * @param {Doing} state
 * @param {boolean} [isHeld] the answer is held back because the user may be interrupting: the model listens already
 * @returns {CallState}
 */
export function callStateOf({ phase, activity, isLost }, isHeld = false) {
  if (isLost) return "connecting";
  if (phase === "queued") return "waiting";
  if (phase !== "running") return phase;
  return activity === "none" || (activity === "speaking" && isHeld) ? "listening" : activity;
}

/** Which buttons are available. @param {Doing} state @param {boolean} [isStarting] devices are being opened */
export function controlsFor({ phase, activity }, isStarting = false) {
  const isOver = phase === "idle" || phase === "ended";
  return {
    canStart: isOver && !isStarting,
    canStop: isStarting || (!isOver && phase !== "stopping"),
    isStopShown: isStarting || !isOver,
    canResume: phase === "pausing" || phase === "paused",
    canInterrupt: phase === "running" && activity === "speaking",
    isTalk: phase === "running" || phase === "pausing" || phase === "paused",
  };
}

/** @param {{phase: string, activity: string, isLost?: boolean, end?: {isByUser: boolean} | null}} session State of a session. */
export function tabStateOf({ phase, activity, isLost, end }) {
  if (isLost || phase === "connecting" || phase === "queued" || phase === "preparing") return "queued";
  if (phase === "paused") return "paused";
  if (phase === "running" || phase === "pausing") {
    return activity === "speaking" ? "speaking" : "listening";
  }
  return phase === "ended" && end && !end.isByUser ? "error" : "idle";
}

// Why a live call cannot continue, and what the user may try next.

/**
 * @typedef {"restart" | "retry" | "reconnect" | "home" | "check" | "camera" | "file" | "voice"} NextStep `retry`
 *   is the same as `restart` before a call began, `reconnect` opens the microphone again, `camera` the
 *   camera; `file` and `voice` continue without a camera
 *
 * @typedef {Object} LiveProblem
 * @property {string} code of a text `problem.CODE`
 * @property {string} message the server's message, or ""
 * @property {"bad" | "caution"} kind
 * @property {NextStep[]} steps buttons to offer, best first
 */

/** @type {Readonly<Record<string, string>>} */
const TIMEOUT_CODES = Object.freeze({ pause: "pause_timeout", max_session: "max_session", inactivity: "timeout" });

/** Ends that are not failures. @type {ReadonlySet<string>} */
const EXPECTED = new Set(["kv_limit", "context_full", "ended_by_admin", "timeout", "queue_cancelled"]);

/** Problems of the microphone that may resolve themselves. @type {ReadonlySet<string>} */
export const DEVICE_CODES = new Set(["permission_denied", "no_microphone", "busy", "unplugged"]);

/** The problem that ended a session; null if the user ended it. @param {EndReason} reason @returns {LiveProblem | null} */
export function problemOfEnd(reason) {
  if (reason.isByUser) return null;
  const code = reason.code === "timeout" ? (TIMEOUT_CODES[reason.detail] ?? "timeout") : reason.code;
  /** @type {NextStep[]} */ const steps = reason.canRestart ? ["restart"] : [];
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
  /** @type {NextStep[]} */ const steps = DEVICE_CODES.has(code) ? [again, "check"] : code === "missing_part" ? [again] : [];
  return { code, message, kind: "bad", steps };
}

/** Code of a `getUserMedia` error. @param {unknown} error @param {string} missing code if there is no such device */
export function deviceCode(error, missing) {
  /** @type {Record<string, string>} */ const codes = {
    NotAllowedError: "permission_denied",
    SecurityError: "permission_denied",
    NotFoundError: missing,
    OverconstrainedError: missing,
    NotReadableError: "busy",
    AbortError: "busy",
  };
  return (error instanceof Error && codes[error.name]) || "unsupported";
}

const SHARED_CODES = new Set(["insecure_context", "unsupported"]); // codes that concern the browser rather than the camera

/** @param {unknown} error why a camera cannot be used @returns {string} code of a text `problem.CODE` */
export function cameraCode(error) {
  const code = codeOf(error);
  return SHARED_CODES.has(code) ? code : `camera_${code}`;
}

/** A problem during a call that continues. @param {string} code @returns {LiveProblem} */
export const warningOf = (code) => ({ code, message: "", kind: "caution", steps: [] });

/** Warnings shown as toasts; lasting ones arrive as `problem`. */
const SHOWN_WARNINGS = new Set([
  "reconnecting",
  "reconnected",
  "late_chunk",
  "upload_slow",
  "context_nearly_full",
  "recording_stopped",
  "bad_frame",
  "no_captions",
  "one_voice",
  "too_big",
  "voice_cut",
]);
const SHOWN_AGAIN_MS = 20_000;

/**
 * Shows each kind of warning at most every 20 s.
 * @param {(code: string) => void} show
 * @param {() => number} [nowMs] a steady clock
 * @returns {(warning: {code: string}) => void}
 */
export function throttledWarnings(show, nowMs = () => performance.now()) {
  /** @type {Map<string, number>} */ const shownAtMs = new Map();
  return ({ code }) => {
    const now = nowMs();
    if (!SHOWN_WARNINGS.has(code) || now - (shownAtMs.get(code) ?? -Infinity) < SHOWN_AGAIN_MS) return;
    shownAtMs.set(code, now);
    show(code);
  };
}

// Texts of the stage.

export function stopKey(/** @type {Pick<SessionState, "phase" | "preparedAtMs">} */ { phase, preparedAtMs }) {
  if (phase === "queued") return "queue.cancel";
  return preparedAtMs === null || phase === "idle" || phase === "ended" ? "common.cancel" : "live.stop";
}

/** States with the same hint in both kinds of call. @type {ReadonlySet<CallState>} */
const SHARED_HINTS = new Set(/** @type {CallState[]} */ (["connecting", "waiting", "preparing"]));

/** @param {CallState} callState @param {{isMuted: boolean, canMute: boolean, isHalf: boolean, isLost?: boolean}} call */
export function hintOf(callState, { isMuted, canMute, isHalf, isLost }) {
  if (isLost) return t("problem.reconnecting.next");
  const isHeard = callState === "listening" || callState === "hearing" || (callState === "speaking" && !isHalf);
  if (isMuted && isHeard) return t("live.hint.muted");
  if (!canMute && (isHeard || (callState === "thinking" && !isHalf))) return t("live.hint.no_microphone");
  return isHalf && !SHARED_HINTS.has(callState) ? t(`half.hint.${callState}`) : t(`live.hint.${callState}`);
}

/** @param {SessionState} state @param {number} nowMs on the session's clock */
export function pauseHint(state, nowMs) {
  if (state.phase !== "paused" || state.isLost || state.pauseEndsAtMs === null) return null;
  if (state.isAutoPaused) return t("live.hint.paused_auto");
  return t("live.hint.paused", { time: formatClock(Math.ceil((state.pauseEndsAtMs - nowMs) / MS_PER_S)) });
}

const RELEASE_MS = 1_000; // more than a server needs to free the place of a call that ended
/** Phases in which the server's free places or queue differ from those of the phase before. @type {ReadonlySet<string>} */
const NEW_STATUS = new Set(["queued", "preparing", "ended"]);

/**
 * Has the page ask the server's status when its own call enters or leaves the queue, or ends.
 * @param {{on: (type: "state", listener: (state: {phase: string}) => void) => unknown}} call
 * @param {() => unknown} refreshStatus
 */
export function followStatus(call, refreshStatus) {
  let last = "";
  call.on("state", ({ phase }) => {
    const isNew = phase !== last && NEW_STATUS.has(phase);
    last = phase;
    if (!isNew) return;
    refreshStatus();
    if (phase === "ended") setTimeout(refreshStatus, RELEASE_MS);
  });
}
