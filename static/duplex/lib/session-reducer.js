// @ts-check
/**
 * A session as one value: a reducer makes the next of it, from the start over the queue to the end. Pure.
 * What full and half duplex do in between, a strategy of each says.
 */

import { queuePlace } from "../../shared/server-messages.js";
import { isOver } from "./session-state.js";

/** @import { QueueWords } from "../../shared/server-messages.js" */
/** @import { PhaseEvent, PhaseState } from "./session-state.js" */

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
