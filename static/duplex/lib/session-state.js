// @ts-check
/**
 * The duplex session as one value: `reduce(state, event)` returns the next. Pure.
 *
 * A pair that makes no sense returns the same state, so a view may compare by `===`.
 */

import { numberOr0, queuePlace } from "../../shared/queue-place.js";
import { captioned } from "./captions.js";
import { appendKept, breaksOff, clockOffsetMs, closeTurn, markInterrupted, transcribe } from "./unit-log.js";
import { timeToSpeech, turnStaysOpen, unitRecord, UNITS_KEPT } from "./unit-log.js";

/** @typedef {import("../../shared/protocol.js").Result} Result */
/** @typedef {import("../../shared/protocol.js").DuplexServerMessage} DuplexServerMessage */
/** @typedef {import("../../shared/end-reasons.js").EndReason} EndReason */
/** @typedef {import("../../shared/queue-place.js").QueuePlace} QueuePlace */
/** @typedef {import("./unit-log.js").UnitRecord} UnitRecord */
/** @typedef {import("./unit-log.js").TranscriptTurn} TranscriptTurn */

/** Where the session stands.
 * @typedef {"idle" | "connecting" | "queued" | "preparing" | "running" | "pausing" | "paused"
 *  | "stopping" | "ended"} Phase
 */

/** What goes on while it runs: `thinking` is the model being two units behind or more.
 * @typedef {"none" | "listening" | "thinking" | "speaking" | "interrupted"} Activity
 */

/** @typedef {Object} SessionState
 * @property {Phase} phase
 * @property {Activity} activity
 * @property {string} sessionId
 * @property {string | null} recordingSessionId
 * @property {QueuePlace | null} queue
 * @property {number} chunkMs Length of a unit.
 * @property {number | null} maxKvTokens Most tokens, as the server says.
 * @property {number} pauseTimeoutS The server ends a longer pause.
 * @property {number | null} pauseEndsAtMs When it would, on the session's clock; null if not paused.
 * @property {boolean} isAutoPaused Paused because the page was hidden.
 * @property {boolean} isPauseConfirmed
 * @property {boolean} isDrained All sound of before the pause was played.
 * @property {boolean} isResuming
 * @property {boolean} isForceListen
 * @property {boolean} isAwaitingListen Sound is thrown away until the model has listened once.
 * @property {boolean} isInterrupted A turn was just broken off.
 * @property {boolean} isTurnOpen The model is in the middle of a turn.
 * @property {boolean} isHeardEarly Some sound of the unit to come was sent ahead.
 * @property {number} chunksSent
 * @property {number} chunksReceived Results.
 * @property {number} chunksUploadDropped Left out because the network was too slow.
 * @property {number} chunksServerDropped The server warned that it left out at least so many.
 * @property {number} chunksIdleDropped Came while the session did not run.
 * @property {number} framesSent
 * @property {number} kvTokens
 * @property {boolean} isContextNearlyFull
 * @property {number} visionSlices Of the last unit.
 * @property {number} visionTokens Of the last unit.
 * @property {number | null} ttfsMs Last listen result to first speak result, of the last turn.
 * @property {number | null} lastListenMs When the last listen result came.
 * @property {number | null} driftMs Change of (client − server clock) since the first result.
 * @property {number | null} firstOffsetMs
 * @property {number | null} aheadMs Sound waiting to be played; null until the player said so.
 * @property {number} gapCount
 * @property {number} totalShiftMs
 * @property {number} gapSinceUnitMs
 * @property {ReadonlyArray<UnitRecord>} units The last 600.
 * @property {ReadonlyArray<TranscriptTurn>} turns The last 200.
 * @property {ReadonlyArray<import("./captions.js").Caption>} captions Of the user; the last 60.
 * @property {number} turnCount Turns the model began.
 * @property {number | null} startedAtMs
 * @property {number | null} preparedAtMs
 * @property {number | null} endedAtMs
 * @property {EndReason | null} end Why it ended.
 */

/** What happens to a session.
 * @typedef {{type: "start", sessionId: string, nowMs: number}
 *  | {type: "server", message: DuplexServerMessage, nowMs: number, unixMs: number}
 *  | {type: "chunk_sent"}
 *  | {type: "picture_sent"}
 *  | {type: "chunk_dropped", why: "upload" | "idle"}
 *  | {type: "pause_asked", isAuto: boolean}
 *  | {type: "drained"}
 *  | {type: "resume_asked"}
 *  | {type: "interrupt_asked"}
 *  | {type: "force_listen", isOn: boolean}
 *  | {type: "playback", aheadMs: number, gapCount?: number, totalShiftMs?: number}
 *  | {type: "gap", gapMs: number}
 *  | {type: "stop_asked"}
 *  | {type: "ended", reason: EndReason, nowMs: number}} SessionEvent
 */

/** @typedef {"pause_asked" | "drained" | "resume_asked" | "interrupt_asked"} WishType */

const MS_PER_S = 1_000;
const DEFAULT_CHUNK_MS = 1_000;
const DEFAULT_PAUSE_TIMEOUT_S = 60;
/** Unanswered chunks from which on the model counts as thinking; one is always under way. */
const THINKING_CHUNKS = 2;

/** @type {ReadonlySet<Phase>} */
const OVER = new Set(/** @type {Phase[]} */ (["idle", "ended"]));
/** @type {ReadonlySet<Phase>} */
const PAUSE = new Set(/** @type {Phase[]} */ (["pausing", "paused"]));
/** @type {ReadonlySet<Phase>} */
const LIVE = new Set(/** @type {Phase[]} */ (["running", "pausing", "paused", "stopping"]));

/**
 * A session that has not begun.
 * @returns {SessionState}
 */
export function initialState() {
  return {
    phase: "idle", activity: "none", sessionId: "", recordingSessionId: null, queue: null,
    chunkMs: DEFAULT_CHUNK_MS, maxKvTokens: null,
    pauseTimeoutS: DEFAULT_PAUSE_TIMEOUT_S, pauseEndsAtMs: null,
    isAutoPaused: false, isPauseConfirmed: false, isDrained: false, isResuming: false,
    isForceListen: false, isAwaitingListen: false, isInterrupted: false, isTurnOpen: false,
    isHeardEarly: false,
    chunksSent: 0, chunksReceived: 0, chunksUploadDropped: 0, chunksServerDropped: 0,
    chunksIdleDropped: 0, framesSent: 0,
    kvTokens: 0, isContextNearlyFull: false, visionSlices: 0, visionTokens: 0,
    ttfsMs: null, lastListenMs: null, driftMs: null, firstOffsetMs: null,
    aheadMs: null, gapCount: 0, totalShiftMs: 0, gapSinceUnitMs: 0,
    units: [], turns: [], captions: [], turnCount: 0,
    startedAtMs: null, preparedAtMs: null, endedAtMs: null, end: null,
  };
}

/**
 * The next state; the same one if the event means nothing now.
 * @param {SessionState} state
 * @param {SessionEvent} event
 * @returns {SessionState}
 */
export function reduce(state, event) {
  const next = event.type === "server" ? reduceServer(state, event) : reduceClient(state, event);
  if (next === state) return state;
  const activity = activityOf(next);
  return activity === next.activity ? next : { ...next, activity };
}

/**
 * Whether sound of the model is to be thrown away now.
 * @param {SessionState} state
 * @returns {boolean}
 */
export function isMuted(state) {
  return state.isForceListen || state.isAwaitingListen || state.phase === "stopping";
}

/**
 * How long the session has been ready, ms.
 * @param {SessionState} state
 * @param {number} nowMs
 * @returns {number}
 */
export function runningMs(state, nowMs) {
  if (state.preparedAtMs === null) return 0;
  return Math.max(0, (state.endedAtMs ?? nowMs) - state.preparedAtMs);
}

/**
 * @param {SessionState} state
 * @returns {Activity}
 */
function activityOf(state) {
  if (state.phase !== "running" && state.phase !== "pausing") return "none";
  if (state.isInterrupted) return "interrupted";
  const isSounding = state.isTurnOpen || (state.aheadMs ?? 0) > 0;
  if (isSounding && !isMuted(state)) return "speaking";
  if (state.phase === "pausing") return "none";
  return unanswered(state) >= THINKING_CHUNKS ? "thinking" : "listening";
}

/**
 * Chunks the server has and has not answered.
 * @param {SessionState} state
 * @returns {number}
 */
function unanswered(state) {
  return Math.max(0, state.chunksSent - state.chunksServerDropped - state.chunksReceived);
}

/**
 * What the page and its devices did.
 * @param {SessionState} state
 * @param {Exclude<SessionEvent, {type: "server"}>} event
 * @returns {SessionState}
 */
function reduceClient(state, event) {
  switch (event.type) {
    case "start": {
      const { sessionId, nowMs } = event;
      if (!OVER.has(state.phase)) return state;
      return { ...initialState(), phase: "connecting", sessionId, startedAtMs: nowMs };
    }
    case "chunk_sent":
      if (state.phase !== "running") return state;
      return { ...state, chunksSent: state.chunksSent + 1 };
    case "picture_sent":
      if (state.phase !== "running") return state;
      return { ...state, framesSent: state.framesSent + 1 };
    case "chunk_dropped":
      if (OVER.has(state.phase)) return state;
      return event.why === "upload"
        ? { ...state, chunksUploadDropped: state.chunksUploadDropped + 1 }
        : { ...state, chunksIdleDropped: state.chunksIdleDropped + 1 };
    case "force_listen":
      if (OVER.has(state.phase) || state.isForceListen === event.isOn) return state;
      return {
        ...state, isForceListen: event.isOn,
        isAwaitingListen: state.isAwaitingListen || state.isTurnOpen,
      };
    case "stop_asked":
      if (OVER.has(state.phase) || state.phase === "stopping") return state;
      return { ...state, phase: "stopping", queue: null, pauseEndsAtMs: null };
    case "ended":
      if (OVER.has(state.phase)) return state;
      return ended(state, event.reason, event.nowMs);
    case "playback": case "gap": return reducePlayer(state, event);
    default: return reduceWish(state, event);
  }
}

/**
 * What the player reports.
 * @param {SessionState} state
 * @param {Extract<SessionEvent, {type: "playback" | "gap"}>} event
 * @returns {SessionState}
 */
function reducePlayer(state, event) {
  if (!LIVE.has(state.phase)) return state;
  if (event.type === "gap") {
    return { ...state, gapSinceUnitMs: state.gapSinceUnitMs + event.gapMs };
  }
  const gapCount = event.gapCount ?? state.gapCount;
  const totalShiftMs = event.totalShiftMs ?? state.totalShiftMs;
  const { aheadMs } = event;
  const isSame =
    aheadMs === state.aheadMs && gapCount === state.gapCount && totalShiftMs === state.totalShiftMs;
  return isSame ? state : { ...state, aheadMs, gapCount, totalShiftMs };
}

/**
 * Pause, resume, interrupt.
 * @param {SessionState} state
 * @param {Extract<SessionEvent, {type: WishType}>} event
 * @returns {SessionState}
 */
function reduceWish(state, event) {
  switch (event.type) {
    case "pause_asked": {
      if (state.phase !== "running") return state;
      const fresh = { isPauseConfirmed: false, isDrained: false, isResuming: false };
      return { ...state, phase: "pausing", isAutoPaused: event.isAuto, ...fresh };
    }
    case "drained":
      if (state.phase !== "pausing" || state.isDrained) return state;
      return settlePause({ ...state, isDrained: true });
    case "resume_asked":
      if (!PAUSE.has(state.phase) || state.isResuming) return state;
      return { ...state, isResuming: true };
    case "interrupt_asked": {
      if (state.phase !== "running" && !PAUSE.has(state.phase)) return state;
      const isInterrupted = state.isTurnOpen || (state.aheadMs ?? 0) > 0;
      return {
        ...state, isAwaitingListen: true, aheadMs: state.aheadMs === null ? null : 0, isInterrupted,
        turns: isInterrupted ? markInterrupted(state.turns) : state.turns,
      };
    }
  }
}

/**
 * What the server said.
 * @param {SessionState} state
 * @param {Extract<SessionEvent, {type: "server"}>} event
 * @returns {SessionState}
 */
function reduceServer(state, event) {
  const { message, nowMs } = event;
  switch (message.type) {
    case "queued": case "queue_update": {
      if (state.phase !== "connecting" && state.phase !== "queued") return state;
      return { ...state, phase: "queued", queue: queuePlace(message) };
    }
    case "queue_done":
      if (state.phase !== "connecting" && state.phase !== "queued") return state;
      return { ...state, phase: "preparing", queue: null };
    case "prepared":
      if (state.phase !== "preparing") return state;
      return {
        ...state, phase: "running", preparedAtMs: nowMs,
        recordingSessionId: message.recording_session_id ?? null,
        chunkMs: numberOr0(message.chunk_ms) || DEFAULT_CHUNK_MS,
        maxKvTokens: message.max_kv_tokens ?? null,
        pauseTimeoutS: numberOr0(message.pause_timeout) || DEFAULT_PAUSE_TIMEOUT_S,
        kvTokens: numberOr0(message.prompt_tokens),
      };
    case "result_part":
      if (!LIVE.has(state.phase) || isMuted(state)) return state;
      return { ...state, isHeardEarly: true, ttfsMs: timeToSpeech(state, nowMs) };
    case "result":
      return LIVE.has(state.phase) ? afterResult(state, message, nowMs, event.unixMs) : state;
    case "paused": {
      if (!PAUSE.has(state.phase) || state.isResuming) return state;
      const pauseTimeoutS = numberOr0(message.timeout) || state.pauseTimeoutS;
      const pauseEndsAtMs = nowMs + pauseTimeoutS * MS_PER_S;
      return settlePause({ ...state, isPauseConfirmed: true, pauseTimeoutS, pauseEndsAtMs });
    }
    case "resumed":
      if (!PAUSE.has(state.phase) || !state.isResuming) return state;
      return {
        ...state, phase: "running", isResuming: false, isAutoPaused: false, pauseEndsAtMs: null,
      };
    case "stopped":
      if (OVER.has(state.phase) || !message.recording_session_id) return state;
      return { ...state, recordingSessionId: message.recording_session_id };
    case "user_transcript": case "text_added": return { ...state, captions: captioned(state.captions, message, state.units, nowMs) };
    case "warning": return afterWarning(state, message.code);
    default: return state;
  }
}

/**
 * @param {SessionState} state
 * @param {string} code
 * @returns {SessionState}
 */
function afterWarning(state, code) {
  if (code === "context_nearly_full") return { ...state, isContextNearlyFull: true };
  if (code !== "late_chunk") return state;
  return { ...state, chunksServerDropped: state.chunksServerDropped + 1 };
}

/**
 * @param {SessionState} state
 * @param {Result} result
 * @param {number} nowMs
 * @param {number} unixMs
 * @returns {SessionState}
 */
function afterResult(state, result, nowMs, unixMs) {
  const { isTurnOpen } = state;
  const isListen = Boolean(result.is_listen);
  const muted = !isListen && isMuted(state);
  const isFirstSpeech = !isListen && !isTurnOpen;
  const isBroken = breaksOff(result, isTurnOpen);
  const offsetMs = clockOffsetMs(result, unixMs);
  const firstOffsetMs = state.firstOffsetMs ?? offsetMs;
  const seen = {
    arrivalMs: nowMs, aheadMs: state.aheadMs, gapMs: state.gapSinceUnitMs,
    isMuted: muted, fallbackStep: state.chunksReceived,
  };
  const unit = unitRecord(result, seen);
  return {
    ...state,
    chunksReceived: state.chunksReceived + 1,
    kvTokens: unit.kvTokens || state.kvTokens,
    visionSlices: unit.visionSlices,
    visionTokens: unit.visionTokens,
    units: appendKept(state.units, unit, UNITS_KEPT),
    gapSinceUnitMs: 0,
    turns: transcribe(state.turns, result, { isTurnOpen, isMuted: muted, nowMs }),
    turnCount: state.turnCount + (isFirstSpeech ? 1 : 0),
    isTurnOpen: turnStaysOpen(result, isTurnOpen),
    isAwaitingListen: state.isAwaitingListen && !isListen,
    isInterrupted: isBroken || (state.isInterrupted && muted),
    aheadMs: isBroken && state.aheadMs !== null ? 0 : state.aheadMs,
    lastListenMs: isListen ? nowMs : state.lastListenMs,
    isHeardEarly: false,
    ttfsMs: isListen ? state.ttfsMs : timeToSpeech(state, nowMs),
    firstOffsetMs,
    driftMs: offsetMs === null ? state.driftMs : offsetMs - (firstOffsetMs ?? offsetMs),
  };
}

/**
 * @param {SessionState} state
 * @returns {SessionState}
 */
function settlePause(state) {
  return state.isPauseConfirmed && state.isDrained ? { ...state, phase: "paused" } : state;
}

/**
 * @param {SessionState} state
 * @param {EndReason} reason
 * @param {number} nowMs
 * @returns {SessionState}
 */
function ended(state, reason, nowMs) {
  return {
    ...state, phase: "ended", queue: null, end: reason, endedAtMs: nowMs, pauseEndsAtMs: null,
    turns: closeTurn(state.turns, nowMs, true), isTurnOpen: false, isInterrupted: false,
    isAwaitingListen: false, isForceListen: false, isResuming: false, isAutoPaused: false,
    aheadMs: null,
  };
}
