/**
 * Chat over `/ws/streaming/{id}`: one socket, opened when a turn needs it. Pure.
 *
 * Each turn sends the whole history and ends in one `TurnResult` or one `TurnError`. If WebSockets are
 * blocked, the turn uses `POST /api/chat`.
 */

import { Emitter } from "../shared/async.js";
import {
  endReason,
  messageText,
  needsProbe,
  numberOr0,
  queuePlace,
  reasonOfClose,
  reasonOfError,
} from "../shared/server-messages.js";
import { LOST_CODES, newSessionId, openLiveSocket, retryDelayMs } from "../shared/live-socket.js";
import { afterReply, atEnd, beginTurn, chatRequest } from "./turn.js";

/** @import { ApiError } from "../shared/api.js" */
/** @import { EndReason, QueuePlace, SocketEnd } from "../shared/server-messages.js" */
/** @import { LiveSocket, Network, WireMessage } from "../shared/live-socket.js" */
/** @import { Chunk, Message, StreamingServerMessage } from "../../types/protocol.js" */
/** @import { TurnOptions, TurnPhase, TurnProgress, TurnResult } from "./turn.js" */

/** @typedef {Object} OwnOptions
 * @property {string} [idPrefix] Default `stream`.
 * @property {() => number} [nowMs] A steady clock.
 *
 * @typedef {Required<Omit<Network, "noteOwner">> & Pick<Network, "noteOwner"> & OwnOptions} StreamingChatOptions
 */

/** Audio of the answer: chunks of a stream, or the whole over HTTP.
 * @typedef {{kind: "pcm" | "wav", audioBase64: string, sampleRateHz: number, chunkIndex: number}} TurnAudio
 */

/** @typedef {Object} StreamingChatEvents
 * @property {TurnProgress} progress After every change of the turn.
 * @property {QueuePlace | null} queue
 * @property {{delta: string, text: string}} text New text, and all of it so far.
 * @property {TurnAudio} audio
 * @property {{text: string}} transcript Transcript of the question's audio.
 * @property {{code: string, message: string}} warning
 */

/** A failed turn; `partial` has what arrived until then. */
export class TurnError extends Error {
  constructor(/** @type {EndReason} */ reason, /** @type {TurnProgress} */ partial) {
    super(reason.message || reason.code);
    this.name = "TurnError";
    this.code = reason.code;
    this.reason = reason;
    this.partial = partial;
  }
}

/** @typedef {Object} RunningTurn
 * @property {TurnProgress} progress
 * @property {TurnOptions} options
 * @property {(result: TurnResult) => void} resolve
 * @property {(error: TurnError) => void} reject
 * @property {boolean} isSent `prefill` has been sent.
 * @property {boolean} isOnReusedSocket The socket is older than the turn and may be stale.
 * @property {AbortController} abort For a turn over HTTP.
 * @property {readonly Message[]} messages
 * @property {{ticket: string, tries: number, lostAtMs: number | null} | null} place Place in the queue to return to.
 */

const PLACE_LIFE_MS = 60_000; // how long the server keeps the place of a lost socket
const STOP_LIMIT_MS = 10_000; // how long the server may take to end a turn after `stop`

/** @extends {Emitter<StreamingChatEvents>} */
export class StreamingChat extends Emitter {
  #options;
  sessionId;
  #secret = ""; // secret of the conversation, with which another socket continues its recording
  /** @type {LiveSocket | null} */ #socket = null;
  /** @type {RunningTurn | null} */ #turn = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #stopTimer;

  constructor(/** @type {StreamingChatOptions} */ options) {
    super();
    this.#options = { idPrefix: "stream", nowMs: () => performance.now(), ...options };
    this.sessionId = newSessionId(this.#options.idPrefix);
  }

  get isBusy() {
    return this.#turn !== null;
  }

  get progress() {
    return this.#turn?.progress ?? null;
  }

  /**
   * Requests the next answer.
   * @param {readonly Message[]} messages The whole history, the new user message last; answers
   *   exactly as received.
   * @param {TurnOptions} [options] Fields of `prefill` and `generate`; by default those of the server.
   * @returns {Promise<TurnResult>} Rejects with a `TurnError`.
   */
  send(messages, options = { prefill: {}, generate: {} }) {
    if (this.#turn) throw new Error("a turn goes on already");
    return new Promise((resolve, reject) => {
      const isOnReusedSocket = this.#socket !== null;
      const progress = beginTurn(this.sessionId, this.#options.nowMs());
      const abort = new AbortController();
      this.#turn = { progress, options, resolve, reject, messages, abort, isOnReusedSocket, isSent: false, place: null };
      this.emit("progress", this.#turn.progress);
      if (this.#socket?.isOpen()) this.#prefill(this.#turn);
      else this.#open();
    });
  }

  /** Stops the answer, or the wait for it; the turn ends with what has arrived. */
  stop() {
    const turn = this.#turn;
    if (!turn || turn.progress.phase === "stopping") return;
    turn.abort.abort();
    this.#change(turn, { phase: "stopping" });
    if (this.#socket?.isOpen() && turn.isSent) {
      this.#socket.send({ type: "stop" });
      this.#stopTimer = setTimeout(() => this.#giveUp(), STOP_LIMIT_MS);
    } else this.#giveUp();
  }

  /** Begins a new conversation, with a new id and, at the next turn, a new socket. */
  reset() {
    this.#failTurn(endReason("cancelled"));
    this.#dropSocket();
    this.sessionId = newSessionId(this.#options.idPrefix);
    this.#secret = "";
  }

  /** Closes the socket; a later turn would open another. */
  close() {
    this.#failTurn(endReason("page_left"));
    this.#socket?.send({ type: "close" });
    this.#dropSocket();
  }

  /** @param {string} [ticket] Ticket of the place in the queue. */
  #open(ticket) {
    this.#dropSocket();
    const { url, socketFactory } = this.#options;
    this.#socket = openLiveSocket(
      url(this.sessionId) + (ticket ? `?ticket=${encodeURIComponent(ticket)}` : ""),
      {
        onOpen: () => this.#turn && this.#prefill(this.#turn),
        onMessage: (message) => this.#onMessage(message),
        onMalformed: () => this.emit("warning", { code: "malformed_message", message: "" }),
        onClosed: (end) => void this.#onClosed(end),
      },
      socketFactory,
    );
  }

  #prefill(/** @type {RunningTurn} */ turn) {
    turn.isSent = true;
    const owner = this.#secret === "" ? {} : { session_secret: this.#secret };
    this.#socket?.send({ ...turn.options.prefill, ...owner, type: "prefill", messages: turn.messages });
  }

  #onMessage(/** @type {WireMessage} */ wire) {
    this.#options.noteOwner?.(wire);
    const turn = this.#turn;
    if (typeof wire.session_secret === "string") this.#secret = wire.session_secret;
    if (wire.type === "error") {
      if (turn?.place && wire.code === "shutting_down") return; // the restarted server keeps the place
      this.#dropSocket();
      return this.#failTurn(reasonOfError(wire));
    }
    if (!turn?.isSent) return;
    if (wire.type === "warning") {
      return this.emit("warning", { code: String(wire.code ?? ""), message: messageText(wire) });
    }
    if (wire.type === "user_transcript") {
      if (wire.error) this.emit("warning", { code: "no_captions", message: String(wire.error) });
      return this.emit("transcript", { text: String(wire.text ?? "") });
    }
    // The types describe what the server should send; each field is validated.
    this.#follow(turn, /** @type {StreamingServerMessage} */ (/** @type {unknown} */ (wire)));
  }

  #follow(/** @type {RunningTurn} */ turn, /** @type {StreamingServerMessage} */ message) {
    const { progress } = turn;
    const nowMs = this.#options.nowMs();
    const unlessStopping = (/** @type {TurnPhase} */ phase) => (progress.phase === "stopping" ? progress.phase : phase);
    switch (message.type) {
      case "queued":
      case "queue_update": {
        if (progress.assignedAtMs !== null) return;
        if (message.return_ticket) turn.place = { ticket: message.return_ticket, tries: 0, lostAtMs: null };
        const queue = queuePlace(message);
        const queueEstimateS = progress.queueEstimateS ?? queue.etaS;
        return this.#change(turn, { phase: unlessStopping("queued"), queue, queueEstimateS });
      }
      case "queue_done": {
        if (progress.assignedAtMs !== null) return;
        turn.place = null;
        const times = { assignedAtMs: nowMs, queueActualMs: nowMs - progress.sentAtMs };
        return this.#change(turn, { phase: unlessStopping("prefilling"), queue: null, ...times });
      }
      case "prefill_done":
        if (progress.prefilledAtMs !== null) return;
        this.#change(turn, {
          phase: unlessStopping("generating"),
          prefilledAtMs: nowMs,
          prefillMs: nowMs - (progress.assignedAtMs ?? progress.sentAtMs),
          cachedTokens: numberOr0(message.cached_tokens),
          inputTokens: numberOr0(message.input_tokens),
          isCacheHit: message.cache_hit ?? numberOr0(message.cached_tokens) > 0,
          recordingSessionId: message.recording_session_id ?? null,
        });
        if (turn.progress.phase !== "stopping") this.#socket?.send({ ...turn.options.generate, type: "generate" });
        return;
      case "chunk":
        return this.#onChunk(turn, message);
      case "done":
        this.#change(turn, {
          text: typeof message.text === "string" && message.text ? message.text : progress.text,
          isStopped: Boolean(message.stopped),
          serverElapsedMs: numberOr0(message.elapsed_ms),
          tokenStats: message.token_stats ?? null,
          recordingSessionId: message.recording_session_id ?? progress.recordingSessionId,
          ...atEnd(progress, "done", nowMs),
        });
        this.#finish(turn);
    }
  }

  #onChunk(/** @type {RunningTurn} */ turn, /** @type {Chunk} */ { text_delta: delta, audio_data: audioBase64, ...chunk }) {
    if (!delta && !audioBase64) return;
    const { progress } = turn;
    const sinceMs = this.#options.nowMs() - progress.sentAtMs;
    const text = progress.text + (delta ?? "");
    this.#change(turn, {
      text,
      chunkCount: progress.chunkCount + 1,
      ttftMs: progress.ttftMs ?? (delta ? sinceMs : null),
      ttfaMs: progress.ttfaMs ?? (audioBase64 ? sinceMs : null),
      sampleRateHz: chunk.audio_sample_rate || progress.sampleRateHz,
    });
    if (delta) this.emit("text", { delta, text });
    if (!audioBase64 || turn.progress.phase === "stopping") return;
    this.emit("audio", { kind: "pcm", audioBase64, sampleRateHz: chunk.audio_sample_rate, chunkIndex: chunk.chunk_index });
  }

  async #onClosed(/** @type {SocketEnd} */ end) {
    this.#socket = null;
    const turn = this.#turn;
    if (!turn) return; // between turns nothing is lost: the next turn opens another socket
    if (turn.progress.phase === "stopping") return this.#giveUp();
    if (turn.isOnReusedSocket && turn.progress.phase === "sending") {
      turn.isOnReusedSocket = false; // it was stale; the turn had not arrived
      return this.#open();
    }
    if (LOST_CODES.has(end.closeCode) && this.#comesBack(turn)) return;
    const probe = needsProbe(end) ? await this.#options.probe() : null;
    if (this.#turn !== turn) return;
    const reason = reasonOfClose(end, probe);
    if (reason.code === "socket_blocked" && !end.wasOpen) await this.#askOverHttp(turn);
    else this.#failTurn(reason);
  }

  /** Returns to the place in the queue, if the server may still keep it. @param {RunningTurn} turn */
  #comesBack(turn) {
    const { place } = turn;
    if (!place) return false;
    place.lostAtMs ??= this.#options.nowMs();
    if (this.#options.nowMs() - place.lostAtMs > PLACE_LIFE_MS) return false;
    setTimeout(() => this.#turn === turn && this.#open(place.ticket), retryDelayMs(place.tries));
    place.tries += 1;
    return true;
  }

  async #askOverHttp(/** @type {RunningTurn} */ turn) {
    turn.isSent = true;
    this.#change(turn, { transport: "http", phase: "generating" });
    try {
      const { postChat, noteOwner } = this.#options;
      const { messages, options, abort } = turn;
      const reply = /** @type {object} */ (await postChat(chatRequest(messages, options), abort.signal));
      noteOwner?.(reply);
      if (this.#turn !== turn) return;
      this.#change(turn, afterReply(turn.progress, reply, this.#options.nowMs()));
      if (turn.progress.phase === "failed") return this.#failTurn(endReason("generation_failed"));
      const { text, wavBase64, sampleRateHz } = turn.progress;
      if (text) this.emit("text", { delta: text, text });
      if (wavBase64) this.emit("audio", { kind: "wav", audioBase64: wavBase64, sampleRateHz, chunkIndex: 0 });
      this.#finish(turn);
    } catch (error) {
      if (this.#turn !== turn) return;
      const { code, message, status } = /** @type {Partial<ApiError>} */ (error);
      this.#failTurn(status === 0 ? endReason("server_gone") : reasonOfError({ code, message }));
    }
  }

  /** Ends a stopped turn to which the server did not reply; the next turn uses a new socket. */
  #giveUp() {
    const turn = this.#turn;
    if (!turn) return;
    this.#dropSocket();
    this.#change(turn, { isStopped: true, ...atEnd(turn.progress, "done", this.#options.nowMs()) });
    this.#finish(turn);
  }

  #finish(/** @type {RunningTurn} */ turn) {
    clearTimeout(this.#stopTimer);
    this.#turn = null;
    const { queue, sentAtMs, assignedAtMs, prefilledAtMs, phase, ...result } = turn.progress;
    turn.resolve(result);
  }

  #failTurn(/** @type {EndReason} */ reason) {
    const turn = this.#turn;
    if (!turn) return;
    clearTimeout(this.#stopTimer);
    this.#change(turn, atEnd(turn.progress, "failed", this.#options.nowMs()));
    this.#turn = null;
    turn.abort.abort();
    turn.reject(new TurnError(reason, turn.progress));
  }

  #change(/** @type {RunningTurn} */ turn, /** @type {Partial<TurnProgress>} */ change) {
    const { queue } = turn.progress;
    turn.progress = { ...turn.progress, ...change };
    this.emit("progress", turn.progress);
    if (turn.progress.queue !== queue) this.emit("queue", turn.progress.queue);
  }

  #dropSocket() {
    this.#socket?.close();
    this.#socket = null;
  }
}
