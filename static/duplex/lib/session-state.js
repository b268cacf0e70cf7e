/** State of both kinds of session, and values derived from it. Pure. */

/** @import { EndReason, QueuePlace } from "../../shared/server-messages.js" */
/** @import { HalfDuplexServerMessage } from "../../../types/protocol.js" */
/** @import { HalfTurn } from "./half-duplex-session.js" */
/** @import { TranscriptTurn, UnitRecord } from "./full-duplex.js" */
/** @import { Caption } from "./user-turns.js" */

/** Turns kept in the transcript; older ones are in the recording. */
export const TURNS_KEPT = 60;
const MS_PER_S = 1_000;
export const DEFAULT_TIMEOUT_S = 180;
export const DEFAULT_CHUNK_MS = 1_000;
export const DEFAULT_PAUSE_TIMEOUT_S = 60;

/** Phase of a session; half duplex has no pause.
 * @typedef {"idle" | "connecting" | "queued" | "preparing" | "running" | "pausing" | "paused"
 *  | "stopping" | "ended"} Phase
 */

/** @typedef {{type: "start", sessionId: string, nowMs: number}
 *  | {type: "stop_asked"}
 *  | {type: "ended", reason: EndReason, nowMs: number}} PhaseEvent
 */

/** Initial state common to both kinds. @typedef {ReturnType<typeof notBegun>} PhaseState */
const notBegun = () => ({
  phase: /** @type {Phase} */ ("idle"),
  sessionId: "",
  recordingSessionId: /** @type {string | null} */ (null),
  queue: /** @type {QueuePlace | null} */ (null),
  isContextNearlyFull: false,
  chunksUploadDropped: 0, // dropped because the network was too slow
  startedAtMs: /** @type {number | null} */ (null),
  preparedAtMs: /** @type {number | null} */ (null),
  endedAtMs: /** @type {number | null} */ (null),
  end: /** @type {EndReason | null} */ (null),
});

/** @template T @param {readonly T[]} list @param {T} item @param {number} kept @returns {readonly T[]} */
export function appendKept(list, item, kept) {
  const start = Math.max(0, list.length + 1 - kept);
  return [...list.slice(start), item];
}

export const isOver = (/** @type {PhaseState} */ { phase }) => phase === "idle" || phase === "ended";

// Full duplex.

/** Activity of a running session; `thinking` means the model is at least two units behind.
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
  isDrained: false, // all audio from before the pause was played
  isResuming: false,
  isForceListen: false,
  isAwaitingListen: false, // audio is dropped until the model has listened once
  isInterrupted: false, // a turn was just interrupted
  isTurnOpen: false, // the model is in the middle of a turn
  isHeardEarly: false, // part of the next unit's audio was sent ahead
  chunksSent: 0,
  chunksReceived: 0, // results
  chunksServerDropped: 0, // at least this many, by the server's warnings
  chunksIdleDropped: 0, // arrived while the session was not running
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

/** Whether the model's audio is dropped now. @param {SessionState} state @returns {boolean} */
export const isMuted = (state) => state.isForceListen || state.isAwaitingListen || state.phase === "stopping";

/** How long the session has been ready, ms. @param {PhaseState} state @param {number} nowMs @returns {number} */
export function runningMs(state, nowMs) {
  if (state.preparedAtMs === null) return 0;
  return Math.max(0, (state.endedAtMs ?? nowMs) - state.preparedAtMs);
}

// Half duplex.

/** Activity of a running session: in `hearing` the user speaks, in `thinking` nothing of the answer has
 * arrived, in `settling` the answer has been played and the microphone is about to open.
 * @typedef {"none" | "listening" | "hearing" | "thinking" | "speaking" | "interrupted"
 *  | "settling"} HalfActivity
 */

/** State of the microphone's gate; audio is sent while it is open.
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
  isMicMuted: false, // muted by the user or because the page is hidden
  isUserSpeaking: false, // as the server detects it
  isInterrupting: false, // the rest of this answer is dropped
  timeoutS: DEFAULT_TIMEOUT_S, // the server ends the session after this long without audio
  heardAtMs: /** @type {number | null} */ (null), // when audio was last sent or expected
  chunksSent: 0,
  kvTokens: 0,
  turns: /** @type {readonly HalfTurn[]} */ ([]), // the last 60
  turnCount: 0,
});

/** Whether the microphone's audio may be sent. @param {HalfState} state @returns {boolean} */
export const isMicOpen = (state) => state.phase === "running" && state.gate === "open" && !state.isMicMuted;

/**
 * Seconds until the server ends the session if nothing more is sent; the timer is stopped while an
 * answer is generated or played. Null before the session is ready.
 * @param {HalfState} state
 * @param {number} nowMs
 * @param {number} maxSessionS Maximum length of a session; 0: unlimited.
 */
export function remainingS(state, nowMs, maxSessionS) {
  if (state.phase !== "running" || state.preparedAtMs === null) return null;
  const silentMs = state.gate === "open" ? nowMs - (state.heardAtMs ?? nowMs) : 0;
  const idleS = state.timeoutS - silentMs / MS_PER_S;
  if (maxSessionS <= 0) return Math.max(0, idleS);
  const ofAllS = maxSessionS - (nowMs - state.preparedAtMs) / MS_PER_S;
  return Math.max(0, Math.min(idleS, ofAllS));
}
