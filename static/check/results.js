/** Results of the checks, their assessment, and the report. Pure. */

import { toDb } from "../shared/pcm.js";
import { phraseText, problemOfStatus, t } from "../shared/texts.js";
import { problem } from "../home/readiness.js";

/** @import { StatusReport } from "../shared/texts.js" */
/** @import { RoundTrips } from "./devices.js" */
/** @import { CaptureLevel } from "../../types/devices.js" */

/**
 * @typedef {import("../home/readiness.js").Phrase} Phrase
 * @typedef {typeof CHECKS[number]} CheckId
 *
 * @typedef {Object} Result
 * @property {"pending" | "running" | "good" | "caution" | "bad"} state
 * @property {Phrase} [text] finding
 * @property {Phrase} [next] next step
 * @property {string} [detail] the browser's message
 * @property {Record<string, string | number | boolean>} [facts] for the report, by name
 */

export const CHECKS = /** @type {const} */ (["browser", "server", "microphone", "speaker", "echo", "camera"]);
/** Required checks; the others are optional. @type {readonly CheckId[]} */
export const NEEDED = ["browser", "server", "microphone", "speaker"];

/** @type {Readonly<Result>} */ const NOT_DONE = Object.freeze({ state: "pending" });

/** Keeps the results. Event: `change`. */
export class Results extends EventTarget {
  /** @type {Map<CheckId, Result>} */ #found = new Map();

  get(/** @type {CheckId} */ id) {
    return this.#found.get(id) ?? NOT_DONE;
  }

  set(/** @type {CheckId} */ id, /** @type {Result} */ result) {
    this.#found.set(id, result);
    this.dispatchEvent(new Event("change"));
  }

  /** A check whose device was closed before anything was found is not done. */
  leave(/** @type {CheckId} */ id) {
    if (this.get(id).state === "running") this.set(id, NOT_DONE);
  }
}

/** @param {string} code @param {{state?: "caution" | "bad", detail?: string, facts?: Result["facts"]}} [options] */
export const problemResult = (code, { state = "bad", ...rest } = {}) => ({ state, ...problem(code), ...rest });

/** What the results say together; `first` is the check to do next. @param {Results} results */
export function verdictOf(results) {
  const stateOf = (/** @type {CheckId} */ id) => results.get(id).state;
  const isOver = (/** @type {CheckId} */ id) => !["pending", "running"].includes(stateOf(id));
  const done = NEEDED.filter(isOver).length;
  const total = NEEDED.length;
  const broken = NEEDED.find((id) => stateOf(id) === "bad");
  if (broken) return { kind: "bad", done, total, first: broken };
  if (done < total) return { kind: "pending", done, total, first: NEEDED.find((id) => !isOver(id)) ?? null };
  const limited = CHECKS.find((id) => ["caution", "bad"].includes(stateOf(id)));
  return { kind: limited ? "caution" : "good", done, total, first: limited ?? null };
}

// Browser features, and the effect of missing ones.

/** Required and optional features. @param {typeof globalThis} scope the window */
export function browserAbilities(scope) {
  const { isSecureContext, navigator } = scope;
  return [
    { id: "secure", isNeeded: true, isThere: isSecureContext !== false },
    { id: "microphone_access", isNeeded: true, isThere: typeof navigator?.mediaDevices?.getUserMedia === "function" },
    { id: "audio_worklet", isNeeded: true, isThere: "AudioWorkletNode" in scope },
    { id: "web_socket", isNeeded: true, isThere: "WebSocket" in scope },
    { id: "web_assembly", isNeeded: false, isThere: "WebAssembly" in scope },
    { id: "media_recorder", isNeeded: false, isThere: "MediaRecorder" in scope },
    { id: "output_choice", isNeeded: false, isThere: "AudioContext" in scope && "setSinkId" in scope.AudioContext.prototype },
    { id: "wake_lock", isNeeded: false, isThere: navigator !== undefined && "wakeLock" in navigator },
  ];
}

/** @param {ReturnType<typeof browserAbilities>} abilities @returns {Result} */
export function browserResult(abilities) {
  const facts = Object.fromEntries(abilities.map(({ id, isThere }) => [id, isThere]));
  if (!facts.secure) return problemResult("insecure_context", { facts });
  if (abilities.some(({ isNeeded, isThere }) => isNeeded && !isThere)) return problemResult("unsupported", { facts });
  if (!facts.media_recorder || !facts.web_assembly) {
    return { state: "caution", text: { key: "check.browser_limited" }, facts };
  }
  return { state: "good", text: { key: "check.browser_good" }, facts };
}

// Assessment of the echo.

/** @typedef {{isHeard: boolean, levelDb: number, delayMs: number}} Echo */

const SOFT_DB = -30; // level below which an echo triggers neither the model nor the speech gate. Our own limit.

const isSoft = (/** @type {Echo} */ { isHeard, levelDb }) => !isHeard || levelDb < SOFT_DB;

const numbersOf = (/** @type {Echo} */ { levelDb, delayMs }) => ({ db: Math.round(-levelDb), ms: Math.round(delayMs) });

/** @param {Echo} plain @param {Echo} cancelled @returns {Result} */
export function echoResult(plain, cancelled) {
  const facts = {
    plain_heard: plain.isHeard,
    plain_db: Math.round(plain.levelDb),
    cancelled_heard: cancelled.isHeard,
    cancelled_db: Math.round(cancelled.levelDb),
    round_trip_ms: Math.round(plain.delayMs),
  };
  if (!plain.isHeard && !cancelled.isHeard) {
    return { state: "good", text: { key: "check.echo_none" }, next: { key: "check.echo_none_next" }, facts };
  }
  if (!isSoft(cancelled)) {
    const params = numbersOf(cancelled);
    return { state: "caution", text: { key: "check.echo_loud", params }, next: { key: "check.echo_loud_next" }, facts };
  }
  const params = numbersOf(plain);
  if (isSoft(plain)) return { state: "good", text: { key: "check.echo_fine", params }, facts };
  return { state: "good", text: { key: "check.echo_removed", params }, next: { key: "check.echo_removed_next" }, facts };
}

// Assessment of the microphone's level.

const ENOUGH_GOOD_MS = 800;
const PATIENCE_MS = 6_000; // after which missing speech is reported
const SILENT_KEY = "problem.silent_microphone.title";
/** @type {Readonly<Record<string, string>>} */ const TROUBLE_KEYS = { loud: "check.mic_loud", quiet: "check.mic_quiet" };

/**
 * @param {Result} before
 * @param {LevelView} view
 * @param {number} openMs how long the microphone has been open
 * @param {Result["facts"]} facts
 * @returns {Result | null} null: unchanged
 */
export function microphoneResult(before, view, openMs, facts) {
  const wasSilent = before.text?.key === SILENT_KEY;
  if (view.word === "silent") return wasSilent ? null : problemResult("silent_microphone", { facts });
  if (view.goodMs >= ENOUGH_GOOD_MS) {
    return before.state === "good" ? null : { state: "good", text: { key: "check.mic_good" }, facts };
  }
  if (wasSilent) return { state: "running", text: { key: "check.mic_speak" }, facts };
  if (before.state !== "running" || openMs <= PATIENCE_MS) return null;
  const key = TROUBLE_KEYS[view.word] ?? "check.mic_unheard";
  return { state: "caution", text: { key }, next: { key: `${key}_next` }, facts };
}

// Assessment of the camera.

const SLOW_FPS = 8; // our own limit, below which the picture looks broken

/** @param {string} device @param {{width: number, height: number, fps: number}} shown @returns {Result} */
export function cameraResult(device, shown) {
  const facts = { device, ...shown };
  if (shown.fps >= SLOW_FPS) return { state: "good", text: { key: "check.camera_good", params: shown }, facts };
  const next = { key: "check.camera_slow_next" };
  return { state: "caution", text: { key: "check.camera_slow", params: shown }, next, facts };
}

// Assessment of the network.

const FAR_MS = 200; // round trip from which answers are noticeably late: a fifth of a unit. Our own limit.
const UNEVEN_MS = 400; // round trip from which single chunks are late for the player: twice its initial delay. Our own limit.

/** @param {RoundTrips} trips @param {number | null} socketMs @param {StatusReport | null} report @returns {Result} */
export function serverResult(trips, socketMs, report) {
  const medianMs = Math.round(trips.medianMs);
  const worstMs = Math.round(trips.worstMs);
  const facts = {
    median_ms: medianMs,
    worst_ms: worstMs,
    failed: trips.failed,
    socket_ms: socketMs === null ? false : Math.round(socketMs),
  };
  if (Number.isNaN(medianMs)) return problemResult("offline");
  if (socketMs === null) {
    return { state: "bad", text: { key: "check.socket_blocked" }, next: { key: "check.socket_blocked_next" }, facts };
  }
  const code = report?.status ? problemOfStatus(report) : null;
  if (code) return problemResult(code, { state: code === "worker_loading" ? "caution" : "bad", facts });
  const params = { median: medianMs, worst: worstMs };
  const far = /** @type {const} */ ({ state: "caution", next: { key: "check.server_far_next" }, facts });
  if (trips.failed > 0) return { ...far, text: { key: "check.server_lossy", n: trips.failed, params } };
  if (medianMs > FAR_MS) return { ...far, text: { key: "check.server_far", params } };
  if (worstMs > UNEVEN_MS) return { ...far, text: { key: "check.server_uneven", params } };
  return { state: "good", text: { key: "check.server_good", params }, facts };
}

/** Plain text, for support. @param {Results} results @param {readonly (readonly [string, string])[]} head labels and values */
export function reportText(results, head) {
  const title = t("check.report");
  const lines = [title, "=".repeat(title.length), ...head.map(([label, value]) => `${label}: ${value}`)];
  for (const id of CHECKS) {
    const { state, text, facts = {} } = results.get(id);
    lines.push("", `${t(`check.${id}`)}: ${t(`check.state_${state}`)}`);
    if (text) lines.push(`  ${phraseText(text)}`);
    for (const [fact, value] of Object.entries(facts)) lines.push(`  ${fact}: ${value}`);
  }
  return `${lines.join("\n")}\n`;
}

// Rating of the microphone's level.

/** @typedef {"waiting" | "silent" | "quiet" | "good" | "loud"} LevelWord */

/** @typedef {ReturnType<ReturnType<typeof createLevelJudge>>} LevelView */

const WORD_WINDOW_MS = 2_500; // a breath between two words must not change the rating
const SILENT_AFTER_MS = 2_000;
const HEARD_DB = -50; // of speech, RMS over 50 ms; ours, by ear with a laptop's microphone
const GOOD_DB = -36;
const CLIPPED_PEAK = 0.985; // a sample this close to full scale is cut off
const CLIPPED_PIECES = 6; // number of clipped levels in the window that count as too loud; a single click does not

export function createLevelJudge() {
  /** @type {{atMs: number, rmsDb: number, peak: number}[]} */ let recent = [];
  let lastMs = /** @type {number | null} */ (null);
  let silentSinceMs = /** @type {number | null} */ (null);
  let goodMs = 0;

  /** @param {number} nowMs @returns {LevelWord} */
  const wordNow = (nowMs) => {
    if (silentSinceMs !== null && nowMs - silentSinceMs >= SILENT_AFTER_MS) return "silent";
    if (recent.filter(({ peak }) => peak >= CLIPPED_PEAK).length >= CLIPPED_PIECES) return "loud";
    const loudestDb = Math.max(...recent.map(({ rmsDb }) => rmsDb));
    if (loudestDb >= GOOD_DB) return "good";
    return loudestDb >= HEARD_DB ? "quiet" : "waiting";
  };

  return (/** @type {CaptureLevel} */ { rms, peak, isSilent }, /** @type {number} */ nowMs) => {
    const passedMs = lastMs === null ? 0 : nowMs - lastMs;
    lastMs = nowMs;
    const rmsDb = toDb(rms);
    silentSinceMs = isSilent ? (silentSinceMs ?? nowMs) : null;
    recent = [...recent.filter(({ atMs }) => nowMs - atMs < WORD_WINDOW_MS), { atMs: nowMs, rmsDb, peak }];
    const word = wordNow(nowMs);
    if (word === "good" && rmsDb >= HEARD_DB) goodMs += passedMs;
    return { rms, peakDb: toDb(peak), word, goodMs }; // how long there was good speech
  };
}
