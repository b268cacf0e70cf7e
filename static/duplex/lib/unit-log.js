/** Timeline, transcript and clocks derived from the units of a duplex session. Pure. */

import { numberOr0 } from "../../shared/server-messages.js";

/** @import { Result } from "../../../types/protocol.js" */
/** @import { SessionState } from "./session-state.js" */

/** What the client keeps of a result.
 * @typedef {Object} Seen
 * @property {number} arrivalMs
 * @property {number | null} aheadMs
 * @property {number} gapMs
 * @property {boolean} isMuted
 * @property {number} fallbackStep Used if the server does not number its units.
 */

/** What the model said in one turn.
 * @typedef {Object} TranscriptTurn
 * @property {number} turnId
 * @property {string} text
 * @property {number} startedAtMs On the session's clock.
 * @property {number | null} endedAtMs null while it speaks.
 * @property {boolean} isInterrupted Interrupted by the user or abandoned by the model.
 */

/** Units kept in the timeline: ten minutes of one second each. */
export const UNITS_KEPT = 600;
/** Turns kept in the transcript; older ones are in the recording. */
export const TURNS_KEPT = 60;
const MS_PER_S = 1_000;

/** One unit on the timeline. @typedef {ReturnType<typeof unitRecord>} UnitRecord */

export const unitRecord = (/** @type {Result} */ result, /** @type {Seen} */ seen) => ({
  step: typeof result.step === "number" ? result.step : seen.fallbackStep, // from 0
  turnId: numberOr0(result.turn_id), // of the speaking turn
  isListen: Boolean(result.is_listen), // the model stayed silent
  isEndOfTurn: Boolean(result.end_of_turn), // it finished its turn
  isBargeIn: result.barge_in === true, // it abandoned its turn
  isMuted: seen.isMuted, // its audio was dropped because the user had interrupted
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
  arrivalMs: seen.arrivalMs, // when it came, on the session's clock
  aheadMs: seen.aheadMs, // audio buffered when it arrived
  gapMs: seen.gapMs, // audible gap since the previous unit; 0 is good
});

/** @template T @param {readonly T[]} list @param {T} item @param {number} kept @returns {readonly T[]} */
export function appendKept(list, item, kept) {
  const start = Math.max(0, list.length + 1 - kept);
  return [...list.slice(start), item];
}

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
export function isTurnStart({ isTurnOpen, isHeardEarly }) {
  return !isTurnOpen && !isHeardEarly;
}

/** Whether a turn continues after a result. @param {Result} result @param {boolean} isTurnOpen @returns {boolean} */
export function turnStaysOpen(result, isTurnOpen) {
  if (!result.is_listen) return !result.end_of_turn;
  return isTurnOpen && !breaksOff(result, isTurnOpen);
}

/**
 * @param {readonly TranscriptTurn[]} turns
 * @param {Result} result
 * @param {{isTurnOpen: boolean, isMuted: boolean, nowMs: number}} seen
 */
export function transcribe(turns, result, seen) {
  const { isTurnOpen, isMuted, nowMs } = seen;
  if (result.is_listen) {
    return breaksOff(result, isTurnOpen) ? closeTurn(turns, nowMs, true) : turns;
  }
  const endedAtMs = result.end_of_turn ? nowMs : null;
  const last = turns.at(-1);
  if (!isTurnOpen || !last || last.endedAtMs !== null) {
    const turn = {
      turnId: numberOr0(result.turn_id),
      text: result.text || "",
      startedAtMs: nowMs,
      endedAtMs,
      isInterrupted: isMuted,
    };
    return appendKept(turns, turn, TURNS_KEPT);
  }
  const isInterrupted = last.isInterrupted || isMuted;
  const grown = { ...last, text: last.text + (result.text || ""), endedAtMs, isInterrupted };
  return [...turns.slice(0, -1), grown];
}

/** @param {readonly TranscriptTurn[]} turns @param {number} nowMs @param {boolean} isInterrupted */
export function closeTurn(turns, nowMs, isInterrupted) {
  const last = turns.at(-1);
  if (!last || last.endedAtMs !== null) return turns;
  const closed = { ...last, endedAtMs: nowMs, isInterrupted: last.isInterrupted || isInterrupted };
  return [...turns.slice(0, -1), closed];
}

/** All of it had arrived, but not all of it was played. @param {readonly TranscriptTurn[]} turns */
export function markInterrupted(turns) {
  const last = turns.at(-1);
  return last ? [...turns.slice(0, -1), { ...last, isInterrupted: true }] : turns;
}

/** Only changes of the value are meaningful. @param {Result} result @param {number} unixMs Client's clock when it came. */
export function clockOffsetMs(result, unixMs) {
  const sentS = result.server_send_ts;
  return typeof sentS === "number" ? unixMs - sentS * MS_PER_S : null;
}
