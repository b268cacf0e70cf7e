/**
 * State of both kinds of session, values derived from it, and the user's turns: time, duration, waveform, and text where known
 * (for the transcript only; the speech gate decides on interruptions). Pure.
 */

/** @import { EndReason, QueuePlace } from "../../shared/server-messages.js" */
/** @import { UserTranscript } from "../../../types/protocol.js" */
/** @import { HalfTurn } from "./half-duplex-session.js" */
/** @import { TranscriptTurn, UnitRecord } from "./full-duplex.js" */

/** Turns kept in the transcript; older ones are in the recording. */
export const TURNS_KEPT = 60;
const MS_PER_S = 1_000;

/** Phase of a session; half duplex has no pause.
 * @typedef {"idle" | "connecting" | "queued" | "preparing" | "running" | "pausing" | "paused"
 *  | "stopping" | "ended"} Phase
 */

/** Initial state common to both kinds. @typedef {ReturnType<typeof notBegun>} PhaseState */
const notBegun = () => ({
  phase: /** @type {Phase} */ ("idle"),
  sessionId: "",
  recordingSessionId: /** @type {string | null} */ (null),
  isLost: false, // the connection, which is being made again
  queue: /** @type {QueuePlace | null} */ (null),
  isContextNearlyFull: false,
  chunksUploadDropped: 0, // dropped because the network was too slow
  startedAtMs: /** @type {number | null} */ (null),
  preparedAtMs: /** @type {number | null} */ (null),
  endedAtMs: /** @type {number | null} */ (null),
  end: /** @type {EndReason | null} */ (null),
});

/** @template T @param {readonly T[]} list @param {T} item @param {number} kept @returns {readonly T[]} */
export const appendKept = (list, item, kept) => [...list, item].slice(-kept);

export const isOver = (/** @type {PhaseState} */ { phase }) => phase === "idle" || phase === "ended";

// Full duplex.

/** Activity of a running session; `thinking` means the model is at least two units behind.
 * @typedef {"none" | "listening" | "thinking" | "speaking" | "interrupted"} Activity
 * @typedef {ReturnType<typeof initialState>} SessionState
 */

export const initialState = () => ({
  ...notBegun(),
  activity: /** @type {Activity} */ ("none"),
  chunkMs: 1_000, // length of a unit
  maxKvTokens: /** @type {number | null} */ (null), // most tokens, as the server says
  pauseTimeoutS: 60, // the server ends a longer pause
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
  chunksServerDropped: 0, // at least this many, by the server's warnings, or lost with a socket
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

export const initialHalfState = () => ({
  ...notBegun(),
  activity: /** @type {HalfActivity} */ ("none"),
  gate: /** @type {Gate} */ ("open"),
  isMicMuted: false, // muted by the user or because the page is hidden
  isUserSpeaking: false, // as the server detects it
  isInterrupting: false, // the rest of this answer is dropped
  timeoutS: 180, // the server ends the session after this long without audio
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

const ABOVE_NOISE = 3; // levels this far above the noise floor count as speech
const LEAST_RMS = 0.005; // minimum level of speech, amplitude (-46 dB)
const FLOOR_RISE = 0.01; // the noise floor falls at once and rises by this share of the distance per level
const FIRST_FLOOR_RMS = 0.003;
const SHORTEST_MS = 250; // anything shorter is a click, ms
const PAUSE_MS = 900; // a pause longer than this ends a turn, ms
/** Bars of a finished turn's waveform. */
export const BARS = 32;
const USER_TURNS_KEPT = 60;

/**
 * @typedef {Object} UserTurn
 * @property {number} startedAtMs
 * @property {number} lengthMs without the pause that ended it
 * @property {number[]} bars 0 to 1
 * @property {boolean} isOpen still talking
 * @property {string} [text] what was said or typed, where it is known
 */

export class UserTurns {
  #floorRms = FIRST_FLOOR_RMS;
  /** @type {{startedAtMs: number, lastLoudMs: number, levels: number[]} | null} */ #current = null;
  /** @type {UserTurn[]} */ #done = [];
  version = 0; // incremented with every change, so that views redraw only then

  /** @returns {UserTurn[]} oldest first; the last may be open */
  get turns() {
    const current = this.#current;
    if (!current || current.lastLoudMs - current.startedAtMs < SHORTEST_MS) return this.#done;
    return [...this.#done, this.#turnOf(current, true)];
  }

  push(/** @type {number} */ rms, /** @type {number} */ nowMs) {
    const isLoud = rms > Math.max(LEAST_RMS, this.#floorRms * ABOVE_NOISE);
    this.#floorRms = rms < this.#floorRms ? rms : this.#floorRms + (rms - this.#floorRms) * FLOOR_RISE;
    if (this.#current === null) {
      if (isLoud) this.#current = { startedAtMs: nowMs, lastLoudMs: nowMs, levels: [] };
      else return;
    }
    this.#current.levels.push(rms);
    this.version += 1;
    if (isLoud) {
      this.#current.lastLoudMs = nowMs;
    } else if (nowMs - this.#current.lastLoudMs > PAUSE_MS) this.end();
  }

  /** Ends the current turn, when the microphone is closed or the call is over. */
  end() {
    const current = this.#current;
    this.#current = null;
    if (!current || current.lastLoudMs - current.startedAtMs < SHORTEST_MS) return;
    this.#done = [...this.#done, this.#turnOf(current, false)].slice(-USER_TURNS_KEPT);
    this.version += 1;
  }

  clear() {
    this.#current = null;
    this.#done = [];
    this.version += 1;
  }

  /** @param {{startedAtMs: number, lastLoudMs: number, levels: number[]}} current @param {boolean} isOpen @returns {UserTurn} */
  #turnOf({ startedAtMs, lastLoudMs, levels }, isOpen) {
    return { startedAtMs, lengthMs: lastLoudMs - startedAtMs, bars: barsOf(levels), isOpen };
  }
}

/** Peak levels, normalised to 1. @param {number[]} levels @param {number} [count] @returns {number[]} */
export function barsOf(levels, count = BARS) {
  const loudest = levels.reduce((most, level) => Math.max(most, level), 0);
  if (loudest === 0) return [];
  const bars = Math.min(count, levels.length);
  return Array.from({ length: bars }, (_, index) => {
    const from = Math.floor((index * levels.length) / bars);
    const to = Math.max(from + 1, Math.floor(((index + 1) * levels.length) / bars));
    const peak = levels.slice(from, to).reduce((most, level) => Math.max(most, level), 0);
    return Math.sqrt(peak / loudest);
  });
}

// Captions of what the user said or typed, and their assignment to detected turns.

/**
 * @typedef {Object} Caption
 * @property {string} text
 * @property {number} startedAtMs on the session's clock
 * @property {number} lengthMs 0 if it was typed
 * @property {boolean} isTyped
 */

const NEAR_MS = 700; // tolerance between the server's and the page's speech detection, ms

/**
 * @param {readonly Caption[]} captions
 * @param {Pick<UserTranscript, "text" | "start_ms"> & {type: string, duration_ms?: number}} said as the server reports it
 * @param {readonly UnitRecord[]} units
 * @param {number} nowMs
 * @returns {readonly Caption[]} unchanged without text
 */
export function captioned(captions, said, units, nowMs) {
  const text = said.text.trim();
  if (!text) return captions;
  const isTyped = said.type !== "user_transcript";
  const lengthMs = said.duration_ms ?? 0;
  const startedAtMs = isTyped ? nowMs : (heardAtMs(units, said.start_ms) ?? nowMs - lengthMs);
  return appendKept(captions, { text, startedAtMs, lengthMs, isTyped }, TURNS_KEPT);
}

/** A unit is sent when its last sample has been recorded. @param {readonly UnitRecord[]} units @param {number} positionMs */
function heardAtMs(units, positionMs) {
  const unit = units.find(({ heardMs }) => heardMs > positionMs);
  return unit ? unit.arrivalMs - unit.wallClockMs - (unit.heardMs - positionMs) : null;
}

/**
 * The user's turns with captions; captions without a detected turn become turns of their own.
 * @param {readonly UserTurn[]} turns
 * @param {readonly Caption[]} captions
 * @returns {readonly UserTurn[]} unchanged without captions
 */
export function withCaptions(turns, captions) {
  if (captions.length === 0) return turns;
  /** @type {Map<UserTurn, string>} */ const words = new Map();
  /** @type {UserTurn[]} */ const others = [];
  for (const { text, startedAtMs, lengthMs, isTyped } of captions) {
    const isSame = (/** @type {UserTurn} */ turn) =>
      startedAtMs - NEAR_MS <= turn.startedAtMs + turn.lengthMs && turn.startedAtMs <= startedAtMs + lengthMs + NEAR_MS;
    const turn = isTyped ? undefined : turns.find(isSame);
    if (turn) words.set(turn, [words.get(turn), text].filter(Boolean).join(" "));
    else others.push({ startedAtMs, lengthMs, bars: [], isOpen: false, text });
  }
  return [...turns.map((turn) => (words.has(turn) ? { ...turn, text: words.get(turn) } : turn)), ...others];
}

/** Turns of both sides by their beginning. @param {readonly TranscriptTurn[]} modelTurns @param {readonly UserTurn[]} userTurns */
export function inOrder(modelTurns, userTurns) {
  const spoken = modelTurns.map((model) => ({ key: `m${model.startedAtMs}`, atMs: model.startedAtMs, model, user: null }));
  const heard = userTurns.map((user) => ({ key: `u${user.startedAtMs}`, atMs: user.startedAtMs, model: null, user }));
  return [...spoken, ...heard].sort((one, other) => one.atMs - other.atMs);
}
