/** Reducer of a full-duplex session: units, pauses, interruptions, playback. Pure. */

import { numberOr0 } from "../../shared/server-messages.js";
import { DEFAULT_CHUNK_MS, DEFAULT_PAUSE_TIMEOUT_S, initialState, isMuted, isOver } from "./session-state.js";
import {
  appendKept,
  breaksOff,
  clockOffsetMs,
  closeTurn,
  markInterrupted,
  timeToSpeech,
  transcribe,
  turnStaysOpen,
  unitRecord,
  UNITS_KEPT,
} from "./unit-log.js";
import { captioned } from "./user-turns.js";
import { sessionReducer } from "./live-session.js";

/** @import { Result } from "../../../types/protocol.js" */
/** @import { SessionEvent } from "../../../types/duplex.js" */
/** @import { Activity, Phase, PhaseEvent, SessionState } from "./session-state.js" */

/** @typedef {"pause_asked" | "drained" | "resume_asked" | "interrupt_asked"} WishType */

const MS_PER_S = 1_000;
const THINKING_CHUNKS = 2; // number of unanswered chunks from which the model counts as thinking; one is always in flight

/** @type {ReadonlySet<Phase>} */ const PAUSE = new Set(/** @type {Phase[]} */ (["pausing", "paused"]));
/** @type {ReadonlySet<Phase>} */ const LIVE = new Set(/** @type {Phase[]} */ (["running", "pausing", "paused", "stopping"]));

/** @type {(state: SessionState, event: SessionEvent) => SessionState} */ export const reduce = sessionReducer({
  initial: initialState,
  activityOf,
  client: onClient,
  server: onServer,
  prepared: (message) => ({
    chunkMs: numberOr0(message.chunk_ms) || DEFAULT_CHUNK_MS,
    maxKvTokens: message.max_kv_tokens ?? null,
    pauseTimeoutS: numberOr0(message.pause_timeout) || DEFAULT_PAUSE_TIMEOUT_S,
    kvTokens: numberOr0(message.prompt_tokens),
  }),
  over: (state, type, nowMs) => ({ pauseEndsAtMs: null, ...(type === "ended" && ended(state, nowMs)) }),
});

/** @param {SessionState} state @returns {Activity} */
function activityOf(state) {
  if (state.phase !== "running" && state.phase !== "pausing") return "none";
  if (state.isInterrupted) return "interrupted";
  const isSounding = state.isTurnOpen || (state.aheadMs ?? 0) > 0;
  if (isSounding && !isMuted(state)) return "speaking";
  if (state.phase === "pausing") return "none";
  return unanswered(state) >= THINKING_CHUNKS ? "thinking" : "listening";
}

/** Number of chunks the server has not answered. @param {SessionState} state @returns {number} */
function unanswered(state) {
  return Math.max(0, state.chunksSent - state.chunksServerDropped - state.chunksReceived);
}

/** @param {SessionState} state @param {Exclude<SessionEvent, PhaseEvent | {type: "server"}>} event @returns {SessionState} */
function onClient(state, event) {
  switch (event.type) {
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
    case "playback":
    case "gap":
      return reducePlayer(state, event);
    default:
      return reduceWish(state, event);
  }
}

/** @param {SessionState} state @param {Extract<SessionEvent, {type: "playback" | "gap"}>} event @returns {SessionState} */
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

/** @param {SessionState} state @param {Extract<SessionEvent, {type: WishType}>} event @returns {SessionState} */
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

/** @param {SessionState} state @param {Extract<SessionEvent, {type: "server"}>} event @returns {SessionState} */
function onServer(state, event) {
  const { message, nowMs } = event;
  switch (message.type) {
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
    case "warning":
      if (message.code !== "late_chunk") return state;
      return { ...state, chunksServerDropped: state.chunksServerDropped + 1 };
    default:
      return state;
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

/** @param {SessionState} state @param {number} nowMs @returns {Partial<SessionState>} */
function ended(state, nowMs) {
  return {
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
