/** What a unit's result changes in a full-duplex session: units, transcript, clocks, interruptions. Pure. */

import { numberOr0 } from "../../shared/server-messages.js";
import { appendKept, isMuted, TURNS_KEPT } from "./session-state.js";

/** @import { Result } from "../../../types/protocol.js" */
/** @import { SessionState } from "./session-state.js" */

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
export function timeToSpeech({ isTurnOpen, isHeardEarly, lastListenMs, ttfsMs }, nowMs) {
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
  if (result.is_listen) return breaksOff(result, isTurnOpen) ? cutTurn(turns, nowMs) : turns;
  const last = turns.at(-1);
  const open = isTurnOpen && last?.endedAtMs === null ? last : null;
  const turn = open ?? newTurn(result, nowMs);
  const isInterrupted = turn.isInterrupted || isMuted;
  const grown = { ...turn, text: turn.text + (result.text || ""), endedAtMs: result.end_of_turn ? nowMs : null, isInterrupted };
  return appendKept(open ? turns.slice(0, -1) : turns, grown, TURNS_KEPT);
}

/** Ends an open turn early. @param {readonly TranscriptTurn[]} turns @param {number} nowMs */
export function cutTurn(turns, nowMs) {
  const last = turns.at(-1);
  if (!last || last.endedAtMs !== null) return turns;
  return [...turns.slice(0, -1), { ...last, endedAtMs: nowMs, isInterrupted: true }];
}

const THINKING_CHUNKS = 2; // number of unanswered chunks from which the model counts as thinking; one is always in flight

export function activityOf(/** @type {SessionState} */ state) {
  if (state.phase !== "running" && state.phase !== "pausing") return "none";
  if (state.isInterrupted) return "interrupted";
  const isSounding = state.isTurnOpen || (state.aheadMs ?? 0) > 0;
  if (isSounding && !isMuted(state)) return "speaking";
  if (state.phase === "pausing") return "none";
  const unanswered = state.chunksSent - state.chunksServerDropped - state.chunksReceived;
  return unanswered >= THINKING_CHUNKS ? "thinking" : "listening";
}

/** @param {SessionState} state @param {Result} result @param {number} nowMs @param {number} unixMs */
export function afterResult(state, result, nowMs, unixMs) {
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
