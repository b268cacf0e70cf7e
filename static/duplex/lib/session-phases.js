// @ts-check
/** What full and half duplex have in common, from the start over the queue to the end. Pure. */

import { queuePlace } from "../../shared/queue-place.js";

/** @import { EndReason } from "../../shared/end-reasons.js" */
/** @import { QueuePlace, QueueWords } from "../../shared/queue-place.js" */

/** Where a session stands; half duplex knows no pause.
 * @typedef {"idle" | "connecting" | "queued" | "preparing" | "running" | "pausing" | "paused"
 *  | "stopping" | "ended"} Phase
 */

/** @typedef {Object} PhaseState
 * @property {Phase} phase
 * @property {string} sessionId
 * @property {string | null} recordingSessionId
 * @property {QueuePlace | null} queue
 * @property {boolean} isContextNearlyFull
 * @property {number} chunksUploadDropped Left out because the network was too slow.
 * @property {number | null} startedAtMs
 * @property {number | null} preparedAtMs
 * @property {number | null} endedAtMs
 * @property {EndReason | null} end Why it ended.
 */

/** @typedef {{type: "start", sessionId: string, nowMs: number}
 *  | {type: "stop_asked"}
 *  | {type: "ended", reason: EndReason, nowMs: number}} PhaseEvent
 */

/** A session that has not begun. @satisfies {PhaseState} */
export const NOT_BEGUN = Object.freeze({
  phase: /** @type {Phase} */ ("idle"),
  sessionId: "",
  recordingSessionId: null,
  queue: null,
  isContextNearlyFull: false,
  chunksUploadDropped: 0,
  startedAtMs: null,
  preparedAtMs: null,
  endedAtMs: null,
  end: null,
});

/** @param {PhaseState} state */
export const isOver = ({ phase }) => phase === "idle" || phase === "ended";
/** @param {PhaseState} state */
const isWaiting = ({ phase }) => phase === "connecting" || phase === "queued";

/**
 * What a wish of the page changes; nothing where it means nothing now.
 * @param {PhaseState} state
 * @param {PhaseEvent} event
 * @returns {Partial<PhaseState> | null}
 */
export function phaseChange(state, event) {
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
export function messageChange(state, message, nowMs) {
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
