// @ts-check
/**
 * The half-duplex session as one value: `reduceHalf(state, event)` returns the next. Pure.
 *
 * The microphone's gate is part of it: open while listening, closed from `generating` until the
 * answer was played and the room is quiet again.
 */

import { numberOr0 } from "../../shared/queue-place.js";
import { NOT_BEGUN, isOver, messageChange, phaseChange } from "./session-phases.js";
import { appendKept, TURNS_KEPT } from "./unit-log.js";

/** @import { Chunk, HalfDuplexServerMessage, TokenStats, TurnDone } from "../../shared/protocol.js" */
/** @import { PhaseEvent, PhaseState } from "./session-phases.js" */

/** What goes on while it runs: `hearing` the user speaks, `thinking` nothing of the answer is there
 * yet, `settling` the answer was played and the microphone opens in a moment.
 * @typedef {"none" | "listening" | "hearing" | "thinking" | "speaking" | "interrupted"
 *  | "settling"} HalfActivity
 */

/** Whether the microphone's sound is sent.
 * @typedef {"open" | "generating" | "playing" | "settling"} Gate
 */

/** One exchange.
 * @typedef {Object} HalfTurn
 * @property {number} turnIndex From 0, as in the recording.
 * @property {number} speechMs Length of what the user said.
 * @property {string} userText What the user said, with captions.
 * @property {string} text The answer, as far as it is there.
 * @property {boolean} isDone
 * @property {boolean} isInterrupted
 * @property {number} startedAtMs When the user had finished, on the session's clock.
 * @property {number | null} ttfsMs From there to the first sound of the answer.
 * @property {number | null} ttftMs From there to its first text.
 * @property {number} elapsedMs As the server says; 0 until it is done.
 * @property {TokenStats | null} tokenStats
 */

/** @typedef {Object} OwnState
 * @property {HalfActivity} activity
 * @property {Gate} gate
 * @property {boolean} isMicMuted The user, or a hidden page, keeps the microphone back.
 * @property {boolean} isUserSpeaking As the server hears it.
 * @property {boolean} isInterrupting The rest of this answer is thrown away.
 * @property {number} timeoutS The server ends the session after so long without sound.
 * @property {number | null} heardAtMs When sound was last sent, or last expected.
 * @property {number} chunksSent
 * @property {number} kvTokens
 * @property {ReadonlyArray<HalfTurn>} turns The last 200.
 * @property {number} turnCount
 *
 * @typedef {PhaseState & OwnState} HalfState
 */

/** @typedef {PhaseEvent
 *  | {type: "server", message: HalfDuplexServerMessage, nowMs: number}
 *  | {type: "chunk_sent", nowMs: number}
 *  | {type: "chunk_dropped"}
 *  | {type: "mic_muted", isMuted: boolean}
 *  | {type: "played_out"}
 *  | {type: "settled", nowMs: number}
 *  | {type: "interrupt_asked"}} HalfEvent
 */

const MS_PER_S = 1_000;
const DEFAULT_TIMEOUT_S = 180;

/** A session that has not begun. @returns {HalfState} */
export function initialHalfState() {
  return {
    ...NOT_BEGUN,
    activity: "none",
    gate: "open",
    isMicMuted: false,
    isUserSpeaking: false,
    isInterrupting: false,
    timeoutS: DEFAULT_TIMEOUT_S,
    heardAtMs: null,
    chunksSent: 0,
    kvTokens: 0,
    turns: [],
    turnCount: 0,
  };
}

/**
 * The next state; the same one if the event means nothing now.
 * @param {HalfState} state
 * @param {HalfEvent} event
 * @returns {HalfState}
 */
export function reduceHalf(state, event) {
  const next = event.type === "server" ? reduceServer(state, event) : reduceClient(state, event);
  if (next === state) return state;
  const activity = activityOf(next);
  return activity === next.activity ? next : { ...next, activity };
}

/** Whether sound of the microphone may be sent. @param {HalfState} state @returns {boolean} */
export function isMicOpen(state) {
  return state.phase === "running" && state.gate === "open" && !state.isMicMuted;
}

/**
 * Seconds until the server would end the session if nothing more were sent; it does not run while
 * an answer is made or played. null before the session is ready.
 * @param {HalfState} state
 * @param {number} nowMs
 * @param {number} maxSessionS The server ends every session after so long; 0 is never.
 * @returns {number | null}
 */
export function remainingS(state, nowMs, maxSessionS) {
  if (state.phase !== "running" || state.preparedAtMs === null) return null;
  const silentMs = state.gate === "open" ? nowMs - (state.heardAtMs ?? nowMs) : 0;
  const idleS = state.timeoutS - silentMs / MS_PER_S;
  if (maxSessionS <= 0) return Math.max(0, idleS);
  const ofAllS = maxSessionS - (nowMs - state.preparedAtMs) / MS_PER_S;
  return Math.max(0, Math.min(idleS, ofAllS));
}

/** @param {HalfState} state @returns {HalfActivity} */
function activityOf(state) {
  if (state.phase !== "running") return "none";
  if (state.isInterrupting) return "interrupted";
  switch (state.gate) {
    case "generating":
      return state.turns.at(-1)?.ttftMs == null ? "thinking" : "speaking";
    case "playing":
      return "speaking";
    case "settling":
      return "settling";
    case "open":
      return state.isUserSpeaking ? "hearing" : "listening";
  }
}

/** @param {HalfState} state @param {Exclude<HalfEvent, {type: "server"}>} event @returns {HalfState} */
function reduceClient(state, event) {
  if (event.type === "start" || event.type === "stop_asked" || event.type === "ended") {
    const change = phaseChange(state, event);
    if (!change) return state;
    if (event.type === "start") return { ...initialHalfState(), ...change };
    return { ...state, ...change, ...(event.type === "ended" && { isUserSpeaking: false, isInterrupting: false }) };
  }
  if (isOver(state)) return state;
  switch (event.type) {
    case "chunk_sent":
      if (!isMicOpen(state)) return state;
      return { ...state, chunksSent: state.chunksSent + 1, heardAtMs: event.nowMs };
    case "chunk_dropped":
      return { ...state, chunksUploadDropped: state.chunksUploadDropped + 1 };
    case "mic_muted":
      return state.isMicMuted === event.isMuted ? state : { ...state, isMicMuted: event.isMuted };
    case "played_out":
      if (state.gate !== "playing") return state;
      return { ...state, gate: "settling", isInterrupting: false };
    case "settled":
      return state.gate === "settling" ? { ...state, gate: "open", heardAtMs: event.nowMs } : state;
    case "interrupt_asked":
      if (state.phase !== "running" || state.isInterrupting) return state;
      return state.gate === "generating" || state.gate === "playing" ? withTurnCut(state) : state;
  }
}

/** @param {HalfState} state @param {Extract<HalfEvent, {type: "server"}>} event @returns {HalfState} */
function reduceServer(state, event) {
  const { message, nowMs } = event;
  switch (message.type) {
    case "prepared": {
      const change = messageChange(state, message, nowMs);
      if (!change) return state;
      return { ...state, ...change, heardAtMs: nowMs, timeoutS: numberOr0(message.timeout_s) || DEFAULT_TIMEOUT_S };
    }
    case "queued":
    case "queue_update":
    case "queue_done":
    case "stopped":
    case "warning": {
      const change = messageChange(state, message, nowMs);
      return change ? { ...state, ...change } : state;
    }
    default:
      return state.phase === "running" ? reduceTurn(state, message, nowMs) : state;
  }
}

/** @param {HalfState} state @param {HalfDuplexServerMessage} message @param {number} nowMs @returns {HalfState} */
function reduceTurn(state, message, nowMs) {
  switch (message.type) {
    case "vad_state":
      if (state.isUserSpeaking === Boolean(message.speaking)) return state;
      return { ...state, isUserSpeaking: Boolean(message.speaking) };
    case "generating": {
      if (state.gate === "generating") return state;
      const turn = newTurn(state.turnCount, numberOr0(message.speech_duration_ms), nowMs);
      const turns = appendKept(state.turns, turn, TURNS_KEPT);
      const turnCount = state.turnCount + 1;
      const silent = { isUserSpeaking: false, isInterrupting: false };
      return { ...state, ...silent, gate: "generating", turns, turnCount };
    }
    case "chunk":
      return state.gate === "generating" ? withPiece(state, message, nowMs) : state;
    case "user_transcript": {
      const turns = state.turns.map((turn) =>
        turn.turnIndex === message.turn_index ? { ...turn, userText: message.text.trim() } : turn,
      );
      return { ...state, turns };
    }
    case "turn_done":
      return state.gate === "generating" ? withTurnDone(state, message) : state;
    default:
      return state;
  }
}

/** @param {number} turnIndex @param {number} speechMs @param {number} startedAtMs @returns {HalfTurn} */
function newTurn(turnIndex, speechMs, startedAtMs) {
  return {
    turnIndex,
    speechMs,
    userText: "",
    text: "",
    isDone: false,
    isInterrupted: false,
    startedAtMs,
    ttfsMs: null,
    ttftMs: null,
    elapsedMs: 0,
    tokenStats: null,
  };
}

/** @param {HalfState} state @param {Chunk} message @param {number} nowMs @returns {HalfState} */
function withPiece(state, message, nowMs) {
  const turn = /** @type {HalfTurn} */ (state.turns.at(-1));
  const hasContent = Boolean(message.text_delta || message.audio_data);
  if (!hasContent) return state;
  const sinceMs = nowMs - turn.startedAtMs;
  return withLastTurn(state, {
    ...turn,
    text: turn.text + (message.text_delta ?? ""),
    ttftMs: turn.ttftMs ?? sinceMs,
    ttfsMs: turn.ttfsMs ?? (message.audio_data ? sinceMs : null),
  });
}

/** @param {HalfState} state @param {TurnDone} message @returns {HalfState} */
function withTurnDone(state, message) {
  const turn = /** @type {HalfTurn} */ (state.turns.at(-1));
  const done = withLastTurn(state, {
    ...turn,
    turnIndex: typeof message.turn_index === "number" ? message.turn_index : turn.turnIndex,
    text: typeof message.text === "string" ? message.text : turn.text,
    isDone: true,
    isInterrupted: turn.isInterrupted || Boolean(message.interrupted),
    elapsedMs: numberOr0(message.elapsed_ms),
    tokenStats: message.token_stats ?? null,
  });
  const kvTokens = numberOr0(message.kv_cache_length) || state.kvTokens;
  return { ...done, gate: "playing", kvTokens };
}

/** The answer was cut for who listens, even if all of it had arrived. @param {HalfState} state @returns {HalfState} */
function withTurnCut(state) {
  const turn = /** @type {HalfTurn} */ (state.turns.at(-1));
  return withLastTurn({ ...state, isInterrupting: true }, { ...turn, isInterrupted: true });
}

/** @param {HalfState} state @param {HalfTurn} turn @returns {HalfState} */
function withLastTurn(state, turn) {
  return { ...state, turns: [...state.turns.slice(0, -1), turn] };
}
