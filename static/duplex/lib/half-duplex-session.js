/**
 * A half-duplex session and its state, including the microphone's gate: open while listening, closed from `generating` until
 * the answer has been played and its echo has decayed. Chunks captured meanwhile are dropped here. Pure.
 */

import { numberOr0 } from "../../shared/server-messages.js";
import { appendKept, initialHalfState, isMicOpen, remainingS, TURNS_KEPT } from "./session-state.js";
import { LiveSession } from "./live-session.js";
import { floatsToBase64 } from "../../shared/pcm.js";

/** @import { Chunk, HalfDuplexPrepare, HalfDuplexPrepared, HalfDuplexServerMessage, TokenStats, TurnDone } from "../../../types/protocol.js" */
/** @import { HalfState } from "./session-state.js" */
/** @import { LinkOptions, SendOutcome } from "../../../types/duplex.js" */

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

/** `isAutoMuteOn`: mutes the microphone while the page is hidden, on by default; `getMaxSessionS`: of `/api/frontend_defaults`,
 * `half_duplex.max_session_s`, 0 is no limit.
 * @typedef {LinkOptions & {isAutoMuteOn?: () => boolean, getMaxSessionS?: () => number}} HalfDuplexOptions
 */

/** `prepare` without its type: system_prompt or system_content, voices, config.
 * @typedef {Omit<HalfDuplexPrepare, "type">} HalfDuplexStart
 */

/** How long the microphone stays closed after the answer, for the room's echo to decay. Source: service docs/specification/service.md#7.6. */
export const SETTLE_MS = 800;
const DRAIN_POLL_MS = 100;
const OUTPUT_RATE_HZ = 24_000;
const BACKLOG_BYTES = 256 * 1024; // bound on unsent bytes, about three seconds of audio; beyond it the newest chunk is dropped

/** @extends {LiveSession<HalfState, HalfDuplexStart>} */
export class HalfDuplexSession extends LiveSession {
  #options;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #gateTimer;
  #isMutedByUser = false;

  constructor(/** @type {HalfDuplexOptions} */ given) {
    const options = { idPrefix: "hdx", isDrained: () => true, isAutoMuteOn: () => true, getMaxSessionS: () => 0, ...given };
    super(options, initialHalfState, activityOf);
    this.#options = options;
  }

  /** Seconds until the server ends the session; null unless it is running. */
  get remainingS() {
    return remainingS(this.state, this.clock.nowMs(), this.#options.getMaxSessionS());
  }

  /** Sends a chunk, or drops it while the gate is closed. @param {{audio: Float32Array}} input 16 kHz mono. @returns {SendOutcome} */
  sendChunk({ audio }) {
    if (this.state.phase !== "running" || !this.isConnected) return "not_running";
    if (!isMicOpen(this.state)) return "gated";
    if (this.bufferedBytes > BACKLOG_BYTES) {
      this.change({ chunksUploadDropped: this.state.chunksUploadDropped + 1 });
      this.warn("upload_slow", "", this.state.chunksUploadDropped);
      return "upload_dropped";
    }
    this.send({ type: "audio_chunk", audio_base64: floatsToBase64(audio) });
    this.change({ chunksSent: this.state.chunksSent + 1, heardAtMs: this.clock.nowMs() });
    return "sent";
  }

  /** Mutes the microphone; the server's silence timeout continues. @param {boolean} isMuted */
  setMicMuted(isMuted) {
    this.#isMutedByUser = isMuted;
    this.onVisibility(this.visibility.isHidden());
  }

  /** Stops the answer at once; the session continues. */
  interrupt() {
    const { phase, gate, isInterrupting } = this.state;
    if (phase !== "running" || isInterrupting || (gate !== "generating" && gate !== "playing")) return;
    // The answer counts as interrupted for the listener even if all of it had arrived.
    this.change({ isInterrupting: true, turns: this.#turnsWith({ isInterrupted: true }) });
    this.emit("flush", { cause: "interrupt" });
    if (gate === "generating") this.send({ type: "interrupt" });
  }

  /** @param {HalfDuplexPrepared} message @override @protected */
  preparedChange(message) {
    return { heardAtMs: this.clock.nowMs(), timeoutS: numberOr0(message.timeout_s) || this.state.timeoutS };
  }

  /** @param {number | null} endedAtMs @override @protected */
  endChange(endedAtMs) {
    return endedAtMs === null ? {} : { isUserSpeaking: false, isInterrupting: false };
  }

  /** @param {HalfDuplexServerMessage} message @override @protected */
  onTalk(message) {
    const { phase, gate, turns, isUserSpeaking } = this.state;
    if (phase !== "running") return;
    switch (message.type) {
      case "vad_state":
        if (isUserSpeaking !== Boolean(message.speaking)) this.change({ isUserSpeaking: !isUserSpeaking });
        return;
      case "generating":
        if (gate !== "generating") this.#onGenerating(numberOr0(message.speech_duration_ms));
        return;
      case "chunk":
        if (gate === "generating" && (message.text_delta || message.audio_data)) this.#onPiece(message);
        return;
      case "user_transcript": {
        const userText = message.text.trim();
        return this.change({
          turns: turns.map((turn) => (turn.turnIndex === message.turn_index ? { ...turn, userText } : turn)),
        });
      }
      case "turn_done":
        if (gate === "generating") this.#onTurnDone(message);
    }
  }

  #onGenerating(/** @type {number} */ speechMs) {
    const { turns, turnCount } = this.state;
    clearTimeout(this.#gateTimer);
    this.change({
      isUserSpeaking: false,
      isInterrupting: false,
      gate: "generating",
      turns: appendKept(turns, newTurn(turnCount, speechMs, this.clock.nowMs()), TURNS_KEPT),
      turnCount: turnCount + 1,
    });
  }

  #onPiece(/** @type {Chunk} */ { text_delta: delta, audio_data: audio, audio_sample_rate: rateHz, chunk_index: step }) {
    const { isInterrupting } = this.state;
    const { turnIndex: turnId, text, startedAtMs, ttftMs, ttfsMs } = this.#turn;
    const arrivalMs = this.clock.nowMs();
    const sinceMs = arrivalMs - startedAtMs;
    const times = { ttftMs: ttftMs ?? sinceMs, ttfsMs: ttfsMs ?? (audio ? sinceMs : null) };
    this.change({ turns: this.#turnsWith({ ...times, text: text + (delta ?? "") }) });
    if (isInterrupting) return;
    this.emit("speak", {
      text: delta ?? "",
      audioBase64: audio ?? "",
      sampleRateHz: rateHz || OUTPUT_RATE_HZ,
      turnId,
      step,
      isTurnStart: ttftMs === null,
      isTurnEnd: false,
      arrivalMs,
    });
  }

  #onTurnDone(/** @type {TurnDone} */ message) {
    const turn = this.#turn;
    const turns = this.#turnsWith({
      turnIndex: typeof message.turn_index === "number" ? message.turn_index : turn.turnIndex,
      text: typeof message.text === "string" ? message.text : turn.text,
      isDone: true,
      isInterrupted: turn.isInterrupted || Boolean(message.interrupted),
      elapsedMs: numberOr0(message.elapsed_ms),
      tokenStats: message.token_stats ?? null,
    });
    this.change({ gate: "playing", kvTokens: numberOr0(message.kv_cache_length) || this.state.kvTokens, turns });
    this.emit("turnend", { turnId: this.#turn.turnIndex });
    this.#waitUntilPlayed();
  }

  /** The one that is being answered. */
  get #turn() {
    return /** @type {HalfTurn} */ (this.state.turns.at(-1));
  }

  #turnsWith(/** @type {Partial<HalfTurn>} */ change) {
    return [...this.state.turns.slice(0, -1), { ...this.#turn, ...change }];
  }

  /** Opens the microphone once the answer has been played and its echo has decayed. */
  #waitUntilPlayed() {
    clearTimeout(this.#gateTimer);
    if (this.state.gate !== "playing") return;
    if (!this.#options.isDrained()) {
      this.#gateTimer = setTimeout(() => this.#waitUntilPlayed(), DRAIN_POLL_MS);
      return;
    }
    this.change({ gate: "settling", isInterrupting: false });
    this.#gateTimer = setTimeout(() => this.change({ gate: "open", heardAtMs: this.clock.nowMs() }), SETTLE_MS);
  }

  /** @param {boolean} isHidden @override @protected */
  onVisibility(isHidden) {
    const isMicMuted = this.#isMutedByUser || (this.#options.isAutoMuteOn() && isHidden);
    if (this.isActive && isMicMuted !== this.state.isMicMuted) this.change({ isMicMuted });
  }

  /** @override @protected */
  onStarted() {
    this.onVisibility(this.visibility.isHidden());
  }

  /** The server may not have got it. @override @protected */
  onReturn() {
    if (this.state.isInterrupting && this.state.gate === "generating") this.send({ type: "interrupt" });
  }

  /** @override @protected */
  onOver() {
    clearTimeout(this.#gateTimer);
  }
}
