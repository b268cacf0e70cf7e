// @ts-check
/** Which sentence tells the user why a live call does not go on, and what may be tried next. Pure. */

/** @import { EndReason } from "../../shared/end-reasons.js" */

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

/**
 * Why a device cannot be used, as a problem.
 * @param {unknown} error anything thrown; a `code` names the sentence
 * @param {boolean} isInCall it happened while the call went on
 * @returns {LiveProblem}
 */
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
