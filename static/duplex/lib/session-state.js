// @ts-check
/**
 * The duplex session as one value: `reduce(state, event)` returns the next. Pure.
 *
 * A pair that makes no sense returns the same state, so a view may compare by `===`.
 */

import { numberOr0 } from "../../shared/queue-place.js";
import { captioned } from "./user-turns.js";
import { NOT_BEGUN, isOver, messageChange, phaseChange } from "./session-phases.js";
import { appendKept, breaksOff, clockOffsetMs, closeTurn, markInterrupted, transcribe } from "./unit-log.js";
import { timeToSpeech, turnStaysOpen, unitRecord, UNITS_KEPT } from "./unit-log.js";

/** @import { Result } from "../../shared/protocol.js" */
/** @import { Activity, SessionEvent, SessionState } from "./duplex-types.js" */
/** @import { Phase } from "./session-phases.js" */

/** @typedef {"pause_asked" | "drained" | "resume_asked" | "interrupt_asked"} WishType */

const MS_PER_S = 1_000;
const DEFAULT_CHUNK_MS = 1_000;
const DEFAULT_PAUSE_TIMEOUT_S = 60;
/** Unanswered chunks from which on the model counts as thinking; one is always under way. */
const THINKING_CHUNKS = 2;

/** @type {ReadonlySet<Phase>} */
const PAUSE = new Set(/** @type {Phase[]} */ (["pausing", "paused"]));
/** @type {ReadonlySet<Phase>} */
const LIVE = new Set(/** @type {Phase[]} */ (["running", "pausing", "paused", "stopping"]));

/** A session that has not begun. @returns {SessionState} */
export function initialState() {
  return {
    ...NOT_BEGUN,
    activity: "none",
    chunkMs: DEFAULT_CHUNK_MS,
    maxKvTokens: null,
    pauseTimeoutS: DEFAULT_PAUSE_TIMEOUT_S,
    pauseEndsAtMs: null,
    isAutoPaused: false,
    isPauseConfirmed: false,
    isDrained: false,
    isResuming: false,
    isForceListen: false,
    isAwaitingListen: false,
    isInterrupted: false,
    isTurnOpen: false,
    isHeardEarly: false,
    chunksSent: 0,
    chunksReceived: 0,
    chunksServerDropped: 0,
    chunksIdleDropped: 0,
    framesSent: 0,
    kvTokens: 0,
    visionSlices: 0,
    visionTokens: 0,
    ttfsMs: null,
    lastListenMs: null,
    driftMs: null,
    firstOffsetMs: null,
    aheadMs: null,
    gapCount: 0,
    totalShiftMs: 0,
    gapSinceUnitMs: 0,
    units: [],
    turns: [],
    captions: [],
    turnCount: 0,
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

/** Whether sound of the model is to be thrown away now. @param {SessionState} state @returns {boolean} */
export function isMuted(state) {
  return state.isForceListen || state.isAwaitingListen || state.phase === "stopping";
}

/** How long the session has been ready, ms. @param {SessionState} state @param {number} nowMs @returns {number} */
export function runningMs(state, nowMs) {
  if (state.preparedAtMs === null) return 0;
  return Math.max(0, (state.endedAtMs ?? nowMs) - state.preparedAtMs);
}

/** @param {SessionState} state @returns {Activity} */
function activityOf(state) {
  if (state.phase !== "running" && state.phase !== "pausing") return "none";
  if (state.isInterrupted) return "interrupted";
  const isSounding = state.isTurnOpen || (state.aheadMs ?? 0) > 0;
  if (isSounding && !isMuted(state)) return "speaking";
  if (state.phase === "pausing") return "none";
  return unanswered(state) >= THINKING_CHUNKS ? "thinking" : "listening";
}

/** Chunks the server has and has not answered. @param {SessionState} state @returns {number} */
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
      const change = phaseChange(state, event);
      return change ? { ...initialState(), ...change } : state;
    }
    case "chunk_sent":
      if (state.phase !== "running") return state;
      return { ...state, chunksSent: state.chunksSent + 1 };
    case "picture_sent":
      if (state.phase !== "running") return state;
      return { ...state, framesSent: state.framesSent + 1 };
    case "chunk_dropped":
      if (isOver(state)) return state;
      return event.why === "upload"
        ? { ...state, chunksUploadDropped: state.chunksUploadDropped + 1 }
        : { ...state, chunksIdleDropped: state.chunksIdleDropped + 1 };
    case "force_listen":
      if (isOver(state) || state.isForceListen === event.isOn) return state;
      return { ...state, isForceListen: event.isOn, isAwaitingListen: state.isAwaitingListen || state.isTurnOpen };
    case "stop_asked":
    case "ended": {
      const change = phaseChange(state, event);
      if (!change) return state;
      const next = { ...state, ...change, pauseEndsAtMs: null };
      return event.type === "ended" ? ended(next, event.nowMs) : next;
    }
    case "playback":
    case "gap":
      return reducePlayer(state, event);
    default:
      return reduceWish(state, event);
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
  const isSame = aheadMs === state.aheadMs && gapCount === state.gapCount && totalShiftMs === state.totalShiftMs;
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
        ...state,
        isAwaitingListen: true,
        aheadMs: state.aheadMs === null ? null : 0,
        isInterrupted,
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
    case "prepared": {
      const change = messageChange(state, message, nowMs);
      if (!change) return state;
      return {
        ...state,
        ...change,
        chunkMs: numberOr0(message.chunk_ms) || DEFAULT_CHUNK_MS,
        maxKvTokens: message.max_kv_tokens ?? null,
        pauseTimeoutS: numberOr0(message.pause_timeout) || DEFAULT_PAUSE_TIMEOUT_S,
        kvTokens: numberOr0(message.prompt_tokens),
      };
    }
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
      return { ...state, phase: "running", isResuming: false, isAutoPaused: false, pauseEndsAtMs: null };
    case "user_transcript":
    case "text_added":
      return { ...state, captions: captioned(state.captions, message, state.units, nowMs) };
    default: {
      if (message.type === "warning" && message.code === "late_chunk") {
        return { ...state, chunksServerDropped: state.chunksServerDropped + 1 };
      }
      const change = messageChange(state, message, nowMs);
      return change ? { ...state, ...change } : state;
    }
  }
}

/** @param {SessionState} state @param {Result} result @param {number} nowMs @param {number} unixMs @returns {SessionState} */
function afterResult(state, result, nowMs, unixMs) {
  const { isTurnOpen } = state;
  const isListen = Boolean(result.is_listen);
  const muted = !isListen && isMuted(state);
  const isFirstSpeech = !isListen && !isTurnOpen;
  const isBroken = breaksOff(result, isTurnOpen);
  const offsetMs = clockOffsetMs(result, unixMs);
  const firstOffsetMs = state.firstOffsetMs ?? offsetMs;
  const seen = {
    arrivalMs: nowMs,
    aheadMs: state.aheadMs,
    gapMs: state.gapSinceUnitMs,
    isMuted: muted,
    fallbackStep: state.chunksReceived,
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

/** @param {SessionState} state @returns {SessionState} */
function settlePause(state) {
  return state.isPauseConfirmed && state.isDrained ? { ...state, phase: "paused" } : state;
}

/** @param {SessionState} state @param {number} nowMs @returns {SessionState} */
function ended(state, nowMs) {
  return {
    ...state,
    turns: closeTurn(state.turns, nowMs, true),
    isTurnOpen: false,
    isInterrupted: false,
    isAwaitingListen: false,
    isForceListen: false,
    isResuming: false,
    isAutoPaused: false,
    aheadMs: null,
  };
}
