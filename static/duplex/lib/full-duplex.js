/** State of a full-duplex session: units, transcript, clocks, pauses, interruptions, playback. Pure. */

import { numberOr0 } from "../../shared/server-messages.js";
import {
  appendKept,
  captioned,
  DEFAULT_CHUNK_MS,
  DEFAULT_PAUSE_TIMEOUT_S,
  initialState,
  isMuted,
  isOver,
  TURNS_KEPT,
} from "./session-state.js";
import { sessionReducer } from "./live-session.js";

/** @import { Result } from "../../../types/protocol.js" */
/** @import { Phase, PhaseEvent, SessionState } from "./session-state.js" */
/** @import { SessionEvent } from "../../../types/duplex.js" */

/** Units kept in the timeline: ten minutes of one second each. */
const UNITS_KEPT = 600;
const MS_PER_S = 1_000;

/** One unit on the timeline. @typedef {ReturnType<typeof unitRecord>} UnitRecord */

/**
 * @param {Result} result
 * @param {{chunksReceived: number, aheadMs: number | null, gapSinceUnitMs: number}} before the state so far
 * @param {{nowMs: number, isMuted: boolean}} seen
 */
const unitRecord = (result, before, { nowMs, isMuted }) => ({
  step: typeof result.step === "number" ? result.step : before.chunksReceived, // from 0
  turnId: numberOr0(result.turn_id), // of the speaking turn
  isListen: Boolean(result.is_listen), // the model stayed silent
  isEndOfTurn: Boolean(result.end_of_turn), // it finished its turn
  isBargeIn: result.barge_in === true, // it abandoned its turn
  isMuted, // its audio was dropped because the user had interrupted
  prefillMs: numberOr0(result.prefill_ms),
  costLlmMs: numberOr0(result.cost_llm_ms),
  costTtsMs: numberOr0(result.cost_tts_ms),
  costToken2wavMs: typeof result.cost_token2wav_ms === "number" ? result.cost_token2wav_ms : null,
  costAllMs: numberOr0(result.cost_all_ms), // stays under `chunkMs` in real time
  wallClockMs: numberOr0(result.wall_clock_ms), // from the chunk's arrival at the server to the result
  kvTokens: numberOr0(result.kv_cache_length),
  visionSlices: numberOr0(result.vision_slices),
  visionTokens: numberOr0(result.vision_tokens),
  heardMs: numberOr0(result.current_time), // audio the server has heard so far
  arrivalMs: nowMs, // when it came, on the session's clock
  aheadMs: before.aheadMs, // audio buffered when it arrived
  gapMs: before.gapSinceUnitMs, // audible gap since the previous unit; 0 is good
});

/**
 * Whether a result interrupts the current turn. Servers with `barge_in` report it themselves
 * (listening for lack of audio is none); otherwise, listening before the end of the turn counts.
 * @param {Result} result
 * @param {boolean} isTurnOpen
 */
export function breaksOff(result, isTurnOpen) {
  if (typeof result.barge_in === "boolean") return result.barge_in;
  return Boolean(result.is_listen) && isTurnOpen;
}

/** Time from the last listen result to the first audio of the turn. @param {SessionState} state before the sound @param {number} nowMs */
function timeToSpeech({ isTurnOpen, isHeardEarly, lastListenMs, ttfsMs }, nowMs) {
  return isTurnOpen || isHeardEarly || lastListenMs === null ? ttfsMs : nowMs - lastListenMs;
}

/** Whether audio that arrives now begins a turn. @param {SessionState} state before the sound */
export const isTurnStart = ({ isTurnOpen, isHeardEarly }) => !isTurnOpen && !isHeardEarly;

/** What the model said in one turn. @typedef {ReturnType<typeof newTurn>} TranscriptTurn */

const newTurn = (/** @type {Result} */ { turn_id: turnId }, /** @type {number} */ startedAtMs) => ({
  turnId: numberOr0(turnId),
  text: "",
  startedAtMs, // on the session's clock
  endedAtMs: /** @type {number | null} */ (null), // null while it speaks
  isInterrupted: false, // by the user, or abandoned by the model
});

/**
 * @param {readonly TranscriptTurn[]} turns
 * @param {Result} result
 * @param {{isTurnOpen: boolean, isMuted: boolean, nowMs: number}} seen
 */
function transcribe(turns, result, { isTurnOpen, isMuted, nowMs }) {
  if (result.is_listen) return breaksOff(result, isTurnOpen) ? closeTurn(turns, nowMs, true) : turns;
  const last = turns.at(-1);
  const open = isTurnOpen && last?.endedAtMs === null ? last : null;
  const turn = open ?? newTurn(result, nowMs);
  const isInterrupted = turn.isInterrupted || isMuted;
  const grown = { ...turn, text: turn.text + (result.text || ""), endedAtMs: result.end_of_turn ? nowMs : null, isInterrupted };
  return appendKept(open ? turns.slice(0, -1) : turns, grown, TURNS_KEPT);
}

/** @param {readonly TranscriptTurn[]} turns @param {number} nowMs @param {boolean} isInterrupted */
function closeTurn(turns, nowMs, isInterrupted) {
  const last = turns.at(-1);
  if (!last || last.endedAtMs !== null) return turns;
  const closed = { ...last, endedAtMs: nowMs, isInterrupted: last.isInterrupted || isInterrupted };
  return [...turns.slice(0, -1), closed];
}

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
  over: (state, type, nowMs) => ({
    pauseEndsAtMs: null,
    ...(type === "ended" && {
      turns: closeTurn(state.turns, nowMs, true),
      isTurnOpen: false,
      isInterrupted: false,
      isAwaitingListen: false,
      isForceListen: false,
      isResuming: false,
      isAutoPaused: false,
      aheadMs: null,
    }),
  }),
});

function activityOf(/** @type {SessionState} */ state) {
  if (state.phase !== "running" && state.phase !== "pausing") return "none";
  if (state.isInterrupted) return "interrupted";
  const isSounding = state.isTurnOpen || (state.aheadMs ?? 0) > 0;
  if (isSounding && !isMuted(state)) return "speaking";
  if (state.phase === "pausing") return "none";
  return unanswered(state) >= THINKING_CHUNKS ? "thinking" : "listening";
}

/** Number of chunks the server has not answered. @param {SessionState} state @returns {number} */
const unanswered = (state) => Math.max(0, state.chunksSent - state.chunksServerDropped - state.chunksReceived);

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
      return isOver(state) ? state : { ...state, chunksUploadDropped: state.chunksUploadDropped + 1 };
    case "force_listen":
      if (isOver(state) || state.isForceListen === event.isOn) return state;
      return { ...state, isForceListen: event.isOn, isAwaitingListen: state.isAwaitingListen || state.isTurnOpen };
    case "playback": {
      if (!LIVE.has(state.phase)) return state;
      const { aheadMs, gapCount = state.gapCount, totalShiftMs = state.totalShiftMs } = event;
      const isSame = aheadMs === state.aheadMs && gapCount === state.gapCount && totalShiftMs === state.totalShiftMs;
      return isSame ? state : { ...state, aheadMs, gapCount, totalShiftMs };
    }
    case "gap":
      return LIVE.has(state.phase) ? { ...state, gapSinceUnitMs: state.gapSinceUnitMs + event.gapMs } : state;
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
      const aheadMs = state.aheadMs === null ? null : 0;
      const last = state.turns.at(-1); // all of it may have arrived, but not all of it was played
      const turns = isInterrupted && last ? [...state.turns.slice(0, -1), { ...last, isInterrupted }] : state.turns;
      return { ...state, isAwaitingListen: true, aheadMs, isInterrupted, turns };
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
  const sentS = result.server_send_ts;
  const offsetMs = typeof sentS === "number" ? unixMs - sentS * MS_PER_S : null; // only its changes are meaningful
  const firstOffsetMs = state.firstOffsetMs ?? offsetMs;
  const unit = unitRecord(result, state, { nowMs, isMuted: muted });
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
    isTurnOpen: isListen ? isTurnOpen && !isBroken : !result.end_of_turn,
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
const settlePause = (state) => (state.isPauseConfirmed && state.isDrained ? { ...state, phase: "paused" } : state);
