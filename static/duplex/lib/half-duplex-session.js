/**
 * A half-duplex session and its state, including the microphone's gate: open while listening, closed from `generating` until
 * the answer has been played and its echo has decayed. Chunks captured meanwhile are dropped here. Pure.
 */

import { numberOr0 } from "../../shared/server-messages.js";
import { appendKept, DEFAULT_TIMEOUT_S, initialHalfState, isMicOpen, isOver, remainingS, TURNS_KEPT } from "./session-state.js";
import { LiveSession, sessionReducer } from "./live-session.js";
import { floatsToBase64 } from "../../shared/pcm.js";

/** @import { Chunk, HalfDuplexPrepare, HalfDuplexServerMessage, TokenStats, TurnDone } from "../../../types/protocol.js" */
/** @import { HalfEvent, HalfState, PhaseEvent } from "./session-state.js" */
/** @import { WireMessage } from "../../shared/live-socket.js" */
/** @import { LinkOptions, SendOutcome } from "../../../types/duplex.js" */

/** @type {(state: HalfState, event: HalfEvent) => HalfState} */ export const reduceHalf = sessionReducer({
  initial: initialHalfState,
  activityOf,
  client: onClient,
  server: onServer,
  prepared: (message, nowMs) => ({ heardAtMs: nowMs, timeoutS: numberOr0(message.timeout_s) || DEFAULT_TIMEOUT_S }),
  over: (_, type) => (type === "ended" ? { isUserSpeaking: false, isInterrupting: false } : {}),
});

function activityOf(/** @type {HalfState} */ state) {
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

/** @param {HalfState} state @param {Exclude<HalfEvent, PhaseEvent | {type: "server"}>} event @returns {HalfState} */
function onClient(state, event) {
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
function onServer(state, { message, nowMs }) {
  if (state.phase !== "running") return state;
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

/** One exchange. @typedef {ReturnType<typeof newTurn>} HalfTurn */

/** @param {number} turnIndex from 0, as in the recording @param {number} speechMs @param {number} startedAtMs on the session's clock */
const newTurn = (turnIndex, speechMs, startedAtMs) => ({
  turnIndex,
  speechMs, // duration of the user's speech
  userText: "", // transcript, with captions on
  text: "", // the answer so far
  isDone: false,
  isInterrupted: false,
  startedAtMs, // when the user had finished
  ttfsMs: /** @type {number | null} */ (null), // from there to the first sound of the answer
  ttftMs: /** @type {number | null} */ (null), // from there to its first text
  elapsedMs: 0, // reported by the server; 0 until done
  tokenStats: /** @type {TokenStats | null} */ (null),
});

function withPiece(/** @type {HalfState} */ state, /** @type {Chunk} */ message, /** @type {number} */ nowMs) {
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

/** The answer counts as interrupted for the listener even if all of it had arrived. @param {HalfState} state @returns {HalfState} */
function withTurnCut(state) {
  const turn = /** @type {HalfTurn} */ (state.turns.at(-1));
  return withLastTurn({ ...state, isInterrupting: true }, { ...turn, isInterrupted: true });
}

/** @param {HalfState} state @param {HalfTurn} turn @returns {HalfState} */
const withLastTurn = (state, turn) => ({ ...state, turns: [...state.turns.slice(0, -1), turn] });

/** @typedef {Object} OwnOptions
 * @property {() => boolean} [isAutoMuteOn] Mute the microphone while the page is hidden; default on.
 * @property {() => number} [getMaxSessionS] Of `/api/frontend_defaults`, `half_duplex.max_session_s`;
 *   0 is no limit.
 *
 * @typedef {LinkOptions & OwnOptions} HalfDuplexOptions
 */

/** `prepare` without its type: system_prompt or system_content, voices, config.
 * @typedef {Omit<HalfDuplexPrepare, "type">} HalfDuplexStart
 */

/** How long the microphone stays closed after the answer, for the room's echo to decay. Source: service docs/specification/service.md#7.6. */
export const SETTLE_MS = 800;
const DRAIN_POLL_MS = 100;
const OUTPUT_RATE_HZ = 24_000;
const BACKLOG_BYTES = 256 * 1024; // bound on unsent bytes, about three seconds of audio; beyond it the newest chunk is dropped

/** @extends {LiveSession<HalfState, HalfEvent, HalfDuplexStart>} */
export class HalfDuplexSession extends LiveSession {
  #options;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #gateTimer;
  #isMutedByUser = false;

  constructor(/** @type {HalfDuplexOptions} */ given) {
    const options = { idPrefix: "hdx", isDrained: () => true, isAutoMuteOn: () => true, getMaxSessionS: () => 0, ...given };
    super(options, initialHalfState(), reduceHalf);
    this.#options = options;
  }

  /** Seconds until the server ends the session; null unless it is running. */
  get remainingS() {
    return remainingS(this.state, this.clock.nowMs(), this.#options.getMaxSessionS());
  }

  /** Sends a chunk, or drops it while the gate is closed. @param {{audio: Float32Array}} input 16 kHz mono. @returns {SendOutcome} */
  sendChunk({ audio }) {
    if (this.state.phase !== "running" || !this.link?.isOpen()) return "not_running";
    if (!isMicOpen(this.state)) return "gated";
    if (this.link.bufferedBytes() > BACKLOG_BYTES) {
      this.apply({ type: "chunk_dropped" });
      this.warn("upload_slow", "", this.state.chunksUploadDropped);
      return "upload_dropped";
    }
    this.link.send({ type: "audio_chunk", audio_base64: floatsToBase64(audio) });
    this.apply({ type: "chunk_sent", nowMs: this.clock.nowMs() });
    return "sent";
  }

  /** Mutes the microphone; the server's silence timeout continues. @param {boolean} isMuted */
  setMicMuted(isMuted) {
    this.#isMutedByUser = isMuted;
    this.onVisibility(this.visibility.isHidden());
  }

  /** Stops the answer at once; the session continues. */
  interrupt() {
    if (!this.apply({ type: "interrupt_asked" })) return;
    this.emit("flush", { cause: "interrupt" });
    if (this.state.gate === "generating") this.link?.send({ type: "interrupt" });
  }

  /** @param {WireMessage} wire @param {HalfState} before @override @protected */
  onTalk(wire, before) {
    const message = /** @type {HalfDuplexServerMessage} */ (/** @type {unknown} */ (wire));
    if (message.type === "chunk") this.#onPiece(message, before);
    else if (message.type === "generating") clearTimeout(this.#gateTimer);
    else if (message.type === "turn_done") {
      this.emit("turnend", { turnId: this.state.turns.at(-1)?.turnIndex ?? 0 });
      this.#waitUntilPlayed();
    }
  }

  #onPiece(/** @type {Chunk} */ message, /** @type {HalfState} */ before) {
    if (before.isInterrupting) return;
    this.emit("speak", {
      text: message.text_delta ?? "",
      audioBase64: message.audio_data ?? "",
      sampleRateHz: message.audio_sample_rate || OUTPUT_RATE_HZ,
      turnId: before.turns.at(-1)?.turnIndex ?? 0,
      step: message.chunk_index,
      isTurnStart: before.turns.at(-1)?.ttftMs === null,
      isTurnEnd: false,
      arrivalMs: this.clock.nowMs(),
    });
  }

  /** Opens the microphone once the answer has been played and its echo has decayed. */
  #waitUntilPlayed() {
    clearTimeout(this.#gateTimer);
    if (this.state.gate !== "playing") return;
    if (!this.#options.isDrained()) {
      this.#gateTimer = setTimeout(() => this.#waitUntilPlayed(), DRAIN_POLL_MS);
      return;
    }
    this.apply({ type: "played_out" });
    this.#gateTimer = setTimeout(() => this.apply({ type: "settled", nowMs: this.clock.nowMs() }), SETTLE_MS);
  }

  /** @param {boolean} isHidden @override @protected */
  onVisibility(isHidden) {
    this.apply({ type: "mic_muted", isMuted: this.#isMutedByUser || (this.#options.isAutoMuteOn() && isHidden) });
  }

  /** @override @protected */
  onStarted() {
    this.onVisibility(this.visibility.isHidden());
  }

  /** @override @protected */
  onOver() {
    clearTimeout(this.#gateTimer);
  }
}
