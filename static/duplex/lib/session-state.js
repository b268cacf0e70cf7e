// @ts-check
/** What is known of a session of either kind, and what follows from it. Pure: session-reducer.js changes it. */

/** @import { EndReason, QueuePlace } from "../../shared/server-messages.js" */
/** @import { Chunk, HalfDuplexServerMessage, TokenStats, TurnDone } from "../../../types/protocol.js" */
/** @import { SessionState } from "./duplex-types.js" */

const MS_PER_S = 1_000;
export const DEFAULT_TIMEOUT_S = 180;
export const DEFAULT_CHUNK_MS = 1_000;
export const DEFAULT_PAUSE_TIMEOUT_S = 60;

/** Where a session stands; half duplex has no pause.
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
const NOT_BEGUN = Object.freeze({
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

// Full duplex.

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
 * @property {boolean} isUserSpeaking As the server detects it.
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
