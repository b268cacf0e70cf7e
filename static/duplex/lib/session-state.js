// @ts-check
/** What is known of a session of either kind, and what follows from it. Pure. */

import { queuePlace } from "../../shared/server-messages.js";

/** @import { EndReason, QueuePlace, QueueWords } from "../../shared/server-messages.js" */
/** @import { HalfDuplexServerMessage } from "../../../types/protocol.js" */
/** @import { HalfTurn } from "./half-duplex.js" */
/** @import { TranscriptTurn, UnitRecord } from "./unit-log.js" */
/** @import { Caption } from "./user-turns.js" */

const MS_PER_S = 1_000;
export const DEFAULT_TIMEOUT_S = 180;
export const DEFAULT_CHUNK_MS = 1_000;
export const DEFAULT_PAUSE_TIMEOUT_S = 60;

/** Where a session stands; half duplex has no pause.
 * @typedef {"idle" | "connecting" | "queued" | "preparing" | "running" | "pausing" | "paused"
 *  | "stopping" | "ended"} Phase
 */

/** @typedef {{type: "start", sessionId: string, nowMs: number}
 *  | {type: "stop_asked"}
 *  | {type: "ended", reason: EndReason, nowMs: number}} PhaseEvent
 */

/** What every session has before it begins. @typedef {ReturnType<typeof notBegun>} PhaseState */
const notBegun = () => ({
  phase: /** @type {Phase} */ ("idle"),
  sessionId: "",
  recordingSessionId: /** @type {string | null} */ (null),
  queue: /** @type {QueuePlace | null} */ (null),
  isContextNearlyFull: false,
  chunksUploadDropped: 0, // left out because the network was too slow
  startedAtMs: /** @type {number | null} */ (null),
  preparedAtMs: /** @type {number | null} */ (null),
  endedAtMs: /** @type {number | null} */ (null),
  end: /** @type {EndReason | null} */ (null),
});

/** @param {PhaseState} state */
export const isOver = ({ phase }) => phase === "idle" || phase === "ended";

// Full duplex.

/** What happens while it runs: `thinking` is the model being two units behind or more.
 * @typedef {"none" | "listening" | "thinking" | "speaking" | "interrupted"} Activity
 * @typedef {ReturnType<typeof initialState>} SessionState
 */

export const initialState = () => ({
  ...notBegun(),
  activity: /** @type {Activity} */ ("none"),
  chunkMs: DEFAULT_CHUNK_MS, // length of a unit
  maxKvTokens: /** @type {number | null} */ (null), // most tokens, as the server says
  pauseTimeoutS: DEFAULT_PAUSE_TIMEOUT_S, // the server ends a longer pause
  pauseEndsAtMs: /** @type {number | null} */ (null), // when it would, on the session's clock; null if not paused
  isAutoPaused: false, // because the page was hidden
  isPauseConfirmed: false,
  isDrained: false, // all sound of before the pause was played
  isResuming: false,
  isForceListen: false,
  isAwaitingListen: false, // sound is thrown away until the model has listened once
  isInterrupted: false, // a turn was just broken off
  isTurnOpen: false, // the model is in the middle of a turn
  isHeardEarly: false, // some sound of the unit to come was sent ahead
  chunksSent: 0,
  chunksReceived: 0, // results
  chunksServerDropped: 0, // the server warned that it left out at least so many
  chunksIdleDropped: 0, // came while the session did not run
  framesSent: 0,
  kvTokens: 0,
  visionSlices: 0, // of the last unit
  visionTokens: 0, // of the last unit
  ttfsMs: /** @type {number | null} */ (null), // last listen result to first speak result, of the last turn
  lastListenMs: /** @type {number | null} */ (null), // when the last listen result came
  driftMs: /** @type {number | null} */ (null), // change of (client − server clock) since the first result
  firstOffsetMs: /** @type {number | null} */ (null),
  aheadMs: /** @type {number | null} */ (null), // sound waiting to be played; null until the player said so
  gapCount: 0,
  totalShiftMs: 0,
  gapSinceUnitMs: 0,
  units: /** @type {readonly UnitRecord[]} */ ([]), // the last 600
  turns: /** @type {readonly TranscriptTurn[]} */ ([]), // the last 60
  captions: /** @type {readonly Caption[]} */ ([]), // of the user; the last 60
  turnCount: 0, // turns the model began
});

/** Whether sound of the model is to be thrown away now. @param {SessionState} state @returns {boolean} */
export function isMuted(state) {
  return state.isForceListen || state.isAwaitingListen || state.phase === "stopping";
}

/** How long the session has been ready, ms. @param {SessionState} state @param {number} nowMs @returns {number} */
export function runningMs(state, nowMs) {
  if (state.preparedAtMs === null) return 0;
  return Math.max(0, (state.endedAtMs ?? nowMs) - state.preparedAtMs);
}

// Half duplex.

/** What happens while it runs: `hearing` the user speaks, `thinking` nothing of the answer is there
 * yet, `settling` the answer was played and the microphone opens in a moment.
 * @typedef {"none" | "listening" | "hearing" | "thinking" | "speaking" | "interrupted"
 *  | "settling"} HalfActivity
 */

/** Whether the microphone's sound is sent.
 * @typedef {"open" | "generating" | "playing" | "settling"} Gate
 * @typedef {ReturnType<typeof initialHalfState>} HalfState
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

export const initialHalfState = () => ({
  ...notBegun(),
  activity: /** @type {HalfActivity} */ ("none"),
  gate: /** @type {Gate} */ ("open"),
  isMicMuted: false, // the user, or a hidden page, keeps the microphone back
  isUserSpeaking: false, // as the server detects it
  isInterrupting: false, // the rest of this answer is thrown away
  timeoutS: DEFAULT_TIMEOUT_S, // the server ends the session after so long without sound
  heardAtMs: /** @type {number | null} */ (null), // when sound was last sent, or last expected
  chunksSent: 0,
  kvTokens: 0,
  turns: /** @type {readonly HalfTurn[]} */ ([]), // the last 60
  turnCount: 0,
});

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

// A reducer makes the next state, from the start over the queue to the end; what full and half duplex do in between, a
// strategy of each says.

/**
 * What a kind of session adds; each returns the same state where an event means nothing now.
 * @template {PhaseState & {activity: string}} State
 * @template {{type: string}} Event
 * @typedef {Object} Strategy
 * @property {() => State} initial
 * @property {(state: State) => State["activity"]} activityOf
 * @property {(state: State, event: any) => State} client what the page and its devices did; `any`: the kind's own events
 * @property {(state: State, event: any) => State} server a message that is not of the phases; `any`: as above
 * @property {(message: any, nowMs: number) => Partial<State>} prepared what the session's beginning says
 * @property {(state: State, type: "stop_asked" | "ended", nowMs: number) => Partial<State>} over
 */

/**
 * @template {PhaseState & {activity: string}} State
 * @template {{type: string}} Event
 * @param {Strategy<State, Event>} strategy
 * @returns {(state: State, event: Event) => State} the next state; the same one if the event means nothing now
 */
export function sessionReducer(strategy) {
  return (state, event) => {
    const next = reduced(strategy, state, event);
    if (next === state) return state;
    const activity = strategy.activityOf(next);
    return activity === next.activity ? next : { ...next, activity };
  };
}

/**
 * @template {PhaseState & {activity: string}} State
 * @param {Strategy<State, any>} strategy
 * @param {State} state
 * @param {any} event `any`: of the phases or the kind's own
 * @returns {State}
 */
function reduced(strategy, state, event) {
  switch (event.type) {
    case "start": {
      const change = phaseChange(state, event);
      return change ? { ...strategy.initial(), ...change } : state;
    }
    case "stop_asked":
    case "ended": {
      const change = phaseChange(state, event);
      return change ? { ...state, ...change, ...strategy.over(state, event.type, event.nowMs) } : state;
    }
    case "server": {
      const { message, nowMs } = event;
      const change = messageChange(state, message, nowMs);
      if (!change) return strategy.server(state, event);
      return { ...state, ...change, ...(message.type === "prepared" && strategy.prepared(message, nowMs)) };
    }
    default:
      return strategy.client(state, event);
  }
}

/** @param {PhaseState} state */
const isWaiting = ({ phase }) => phase === "connecting" || phase === "queued";

/** Null where it means nothing now. @param {PhaseState} state @param {PhaseEvent} event @returns {Partial<PhaseState> | null} */
function phaseChange(state, event) {
  if (event.type === "start") {
    return isOver(state) ? { phase: "connecting", sessionId: event.sessionId, startedAtMs: event.nowMs } : null;
  }
  if (isOver(state)) return null;
  if (event.type === "ended") return { phase: "ended", queue: null, end: event.reason, endedAtMs: event.nowMs };
  return state.phase === "stopping" ? null : { phase: "stopping", queue: null };
}

/**
 * What a message changes that both kinds of session get; nothing where it is out of place.
 * @param {PhaseState} state
 * @param {{type: string, code?: string, recording_session_id?: string | null} & QueueWords} message
 * @param {number} nowMs
 * @returns {Partial<PhaseState> | null}
 */
function messageChange(state, message, nowMs) {
  const recordingSessionId = message.recording_session_id ?? null;
  switch (message.type) {
    case "queued":
    case "queue_update":
      return isWaiting(state) ? { phase: "queued", queue: queuePlace(message) } : null;
    case "queue_done":
      return isWaiting(state) ? { phase: "preparing", queue: null } : null;
    case "prepared":
      return state.phase === "preparing" ? { phase: "running", preparedAtMs: nowMs, recordingSessionId } : null;
    case "stopped":
      return isOver(state) || !recordingSessionId ? null : { recordingSessionId };
    case "warning":
      return message.code === "context_nearly_full" && !isOver(state) ? { isContextNearlyFull: true } : null;
    default:
      return null;
  }
}
