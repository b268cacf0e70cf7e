// @ts-check
/**
 * One half-duplex session: socket and microphone's gate around `half-duplex-state.js`. Device.
 *
 * Emits codes, never sentences. The page sends every chunk it captures; what may not be heard now
 * is left out here. It plays what `speak` brings and throws sound away on `flush`.
 */

import { Emitter } from "../../shared/emitter.js";
import { endReason, messageText } from "../../shared/end-reasons.js";
import { probeServer, newSessionId, socketUrl } from "../../shared/live-socket.js";
import { floatsToBase64 } from "../../shared/pcm.js";
import { alwaysVisible } from "../../shared/page-visibility.js";
import { openSessionLink } from "../../shared/session-link.js";
import { initialHalfState, isMicOpen, reduceHalf, remainingS } from "./half-duplex-state.js";

/** @typedef {import("../../shared/protocol.js").HalfDuplexPrepare} HalfDuplexPrepare */
/** @typedef {import("../../shared/protocol.js").HalfDuplexPrepared} HalfDuplexPrepared */
/** @typedef {import("../../shared/protocol.js").HalfDuplexServerMessage} HalfDuplexServerMessage */
/** @typedef {import("../../shared/protocol.js").Chunk} Chunk */
/** @typedef {import("../../shared/end-reasons.js").EndReason} EndReason */
/** @typedef {import("../../shared/end-reasons.js").ServerProbe} ServerProbe */
/** @typedef {import("../../shared/live-socket.js").SocketFactory} SocketFactory */
/** @typedef {import("../../shared/live-socket.js").WireMessage} WireMessage */
/** @typedef {import("../../shared/page-visibility.js").VisibilitySource} VisibilitySource */
/** @typedef {import("../../shared/session-link.js").SessionLink} SessionLink */
/** @typedef {import("./duplex-types.js").SessionClock} SessionClock */
/** @typedef {import("./duplex-types.js").SessionWarning} SessionWarning */
/** @typedef {import("./half-duplex-state.js").HalfState} HalfState */
/** @typedef {import("./half-duplex-state.js").HalfEvent} HalfEvent */
/** @typedef {import("./half-duplex-state.js").HalfTurn} HalfTurn */
/** @typedef {import("../../shared/queue-place.js").QueuePlace} QueuePlace */

/** @typedef {Object} HalfDuplexOptions
 * @property {string} [idPrefix] Default `hdx`.
 * @property {() => boolean} [isDrained] All sound handed to the player was played; default true.
 * @property {() => boolean} [isAutoMuteOn] Hold the microphone back on a hidden page; default on.
 * @property {() => number} [getMaxSessionS] Of `/api/frontend_defaults`, `half_duplex.max_session_s`;
 *   0 is no limit.
 * @property {(sessionId: string) => string} [url]
 * @property {SocketFactory} [socketFactory]
 * @property {SessionClock} [clock]
 * @property {VisibilitySource} [visibility] Pass `pageVisibility()`.
 * @property {() => Promise<ServerProbe>} [probe]
 */

/** `prepare` without its type: system_prompt or system_content, voices, config.
 * @typedef {Omit<HalfDuplexPrepare, "type">} HalfDuplexStart
 */

/** A piece of the answer.
 * @typedef {Object} HalfSpeakEvent
 * @property {string} text
 * @property {string} audioBase64 float32; "" if this piece has no sound.
 * @property {number} sampleRateHz
 * @property {number} turnIndex
 * @property {number} chunkIndex
 * @property {boolean} isTurnStart
 * @property {number} arrivalMs
 */

/** @typedef {Object} HalfDuplexEvents
 * @property {HalfState} state After every change.
 * @property {QueuePlace | null} queue
 * @property {null} queuedone
 * @property {HalfDuplexPrepared} prepared Start to capture now.
 * @property {HalfSpeakEvent} speak Play this.
 * @property {HalfTurn} turnend The answer is complete; its sound may still be playing.
 * @property {{cause: "interrupt" | "stop"}} flush
 * @property {SessionWarning} warning
 * @property {{reason: EndReason, state: HalfState}} ended
 */

/** @typedef {"sent" | "gated" | "upload_dropped" | "not_running"} HalfSendOutcome */

/** How long the microphone stays closed after the answer: the room's echo. Source: service
 * docs/specification/service.md#7.6. */
export const SETTLE_MS = 800;
const DRAIN_POLL_MS = 100;
const OUTPUT_RATE_HZ = 24_000;
/** Unsent bytes from which on the newest chunk is left out: about three seconds of sound. */
const BACKLOG_BYTES = 256 * 1024;

/** @extends {Emitter<HalfDuplexEvents>} */
export class HalfDuplexSession extends Emitter {
  #options;
  #state = initialHalfState();
  /** @type {SessionLink | null} */
  #link = null;
  /** @type {HalfDuplexStart | null} */
  #given = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #gateTimer;
  #isMutedByUser = false;
  /** @type {(() => void)[]} */
  #offs = [];

  /** @param {HalfDuplexOptions} [options] */
  constructor(options = {}) {
    super();
    this.#options = {
      idPrefix: "hdx",
      isDrained: () => true,
      isAutoMuteOn: () => true,
      getMaxSessionS: () => 0,
      url: (/** @type {string} */ sessionId) => socketUrl("half_duplex", sessionId),
      socketFactory: undefined,
      clock: { nowMs: () => performance.now(), unixMs: () => Date.now() },
      visibility: alwaysVisible(),
      probe: () => probeServer("half_duplex_audio"),
      ...options,
    };
    const { visibility } = this.#options;
    this.#offs.push(visibility.onChange(() => this.#applyMute()));
    this.#offs.push(visibility.onPageHide(() => this.#link?.drop(endReason("page_left"))));
  }

  /** What is known of the session; replaced, never changed. */
  get state() {
    return this.#state;
  }

  /** Whether a session goes on, from connecting to stopping. */
  get isActive() {
    return this.#state.phase !== "idle" && this.#state.phase !== "ended";
  }

  /** Seconds left before the server ends the session; null unless it runs. */
  get remainingS() {
    return remainingS(this.#state, this.#options.clock.nowMs());
  }

  /**
   * Connect, queue and prepare; `prepared` or `ended` follows. Does nothing while one goes on.
   * @param {HalfDuplexStart} given
   * @returns {string} The session's id.
   */
  start(given) {
    if (this.isActive) return this.#state.sessionId;
    const { idPrefix, clock, url, socketFactory, probe, getMaxSessionS } = this.#options;
    const sessionId = newSessionId(idPrefix, clock.unixMs());
    this.#given = given;
    this.#link = openSessionLink({
      url: url(sessionId),
      socketFactory,
      probe,
      onMessage: (message) => this.#onMessage(message),
      onMalformed: () => this.#warn("malformed_message"),
      onConnection: (isThere) => this.#warn(isThere ? "reconnected" : "reconnecting"),
      onEnd: (reason) => this.#onEnd(reason),
    });
    const nowMs = clock.nowMs();
    this.#apply({ type: "start", sessionId, maxSessionS: getMaxSessionS(), nowMs });
    this.#applyMute();
    return sessionId;
  }

  /**
   * Start again with the same settings, under a new id.
   * @returns {string} The session's id; "" if there was none before.
   */
  restart() {
    return this.#given ? this.start(this.#given) : "";
  }

  /**
   * Send half a second of the microphone; while the gate is closed it is left out.
   * @param {Float32Array} audio 16 kHz mono.
   * @returns {HalfSendOutcome}
   */
  sendChunk(audio) {
    if (this.#state.phase !== "running" || !this.#link?.isOpen()) return "not_running";
    if (!isMicOpen(this.#state)) return "gated";
    if (this.#link.bufferedBytes() > BACKLOG_BYTES) {
      this.#apply({ type: "chunk_dropped" });
      this.#warn("upload_slow", "", this.#state.chunksUploadDropped);
      return "upload_dropped";
    }
    this.#link.send({ type: "audio_chunk", audio_base64: floatsToBase64(audio) });
    this.#apply({ type: "chunk_sent", nowMs: this.#options.clock.nowMs() });
    return "sent";
  }

  /**
   * Keep the microphone back; the server's silence limit goes on.
   * @param {boolean} isMuted
   */
  setMicMuted(isMuted) {
    this.#isMutedByUser = isMuted;
    this.#applyMute();
  }

  /** Stop the answer: silence at once; the session goes on. */
  interrupt() {
    const before = this.#state;
    this.#apply({ type: "interrupt_asked" });
    if (this.#state === before) return;
    this.emit("flush", { cause: "interrupt" });
    if (this.#state.gate === "generating") this.#link?.send({ type: "interrupt" });
  }

  /** End the session, whatever it is doing. */
  stop() {
    if (!this.isActive || this.#state.phase === "stopping") return;
    const { phase } = this.#state;
    const isWaiting = phase === "connecting" || phase === "queued";
    this.#apply({ type: "stop_asked" });
    this.emit("flush", { cause: "stop" });
    this.#link?.leave(endReason(isWaiting ? "cancelled" : "stopped"));
  }

  /** Leave the queue. */
  cancelQueue() {
    const { phase } = this.#state;
    if (phase === "connecting" || phase === "queued") this.stop();
  }

  /** End at once and listen to the page no more; the object is of no use afterwards. */
  close() {
    this.#link?.drop(endReason("page_left"));
    for (const off of this.#offs.splice(0)) off();
  }

  /** @param {WireMessage} wire */
  #onMessage(wire) {
    const before = this.#state;
    const nowMs = this.#options.clock.nowMs();
    // The types promise what the server sends; the reducer reads each field with care.
    const message = /** @type {HalfDuplexServerMessage} */ (/** @type {unknown} */ (wire));
    this.#apply({ type: "server", message, nowMs });
    if (message.type === "warning") return this.#warn(message.code, messageText(wire));
    if (message.type === "user_transcript" && message.error) this.#warn("no_captions", message.error);
    if (message.type === "chunk") return this.#onPiece(message, before, nowMs);
    if (this.#state === before) return;
    if (this.#state.queue !== before.queue) this.emit("queue", this.#state.queue);
    if (message.type === "queue_done") {
      this.emit("queuedone", null);
      this.#link?.send({ ...this.#given, type: "prepare" });
    } else if (message.type === "prepared") this.emit("prepared", message);
    else if (message.type === "generating") clearTimeout(this.#gateTimer);
    else if (message.type === "turn_done") this.#onTurnDone();
  }

  /**
   * @param {Chunk} message
   * @param {HalfState} before
   * @param {number} nowMs
   */
  #onPiece(message, before, nowMs) {
    if (before.gate !== "generating" || before.isInterrupting || before.phase !== "running") return;
    if (!message.text_delta && !message.audio_data) return;
    this.emit("speak", {
      text: message.text_delta ?? "",
      audioBase64: message.audio_data ?? "",
      sampleRateHz: message.audio_sample_rate || OUTPUT_RATE_HZ,
      turnIndex: before.turns.at(-1)?.turnIndex ?? 0,
      chunkIndex: message.chunk_index,
      isTurnStart: before.turns.at(-1)?.ttftMs === null,
      arrivalMs: nowMs,
    });
  }

  #onTurnDone() {
    this.emit("turnend", /** @type {HalfTurn} */ (this.#state.turns.at(-1)));
    this.#waitUntilPlayed();
  }

  /** Open the microphone when the answer was played and the room is quiet. */
  #waitUntilPlayed() {
    clearTimeout(this.#gateTimer);
    if (this.#state.gate !== "playing") return;
    if (!this.#options.isDrained()) {
      this.#gateTimer = setTimeout(() => this.#waitUntilPlayed(), DRAIN_POLL_MS);
      return;
    }
    this.#apply({ type: "played_out" });
    const { clock } = this.#options;
    const open = () => this.#apply({ type: "settled", nowMs: clock.nowMs() });
    this.#gateTimer = setTimeout(open, SETTLE_MS);
  }

  #applyMute() {
    const { isAutoMuteOn, visibility } = this.#options;
    const isMuted = this.#isMutedByUser || (isAutoMuteOn() && visibility.isHidden());
    this.#apply({ type: "mic_muted", isMuted });
  }

  /** @param {EndReason} reason */
  #onEnd(reason) {
    clearTimeout(this.#gateTimer);
    this.#link = null;
    const wasQueued = this.#state.queue !== null;
    this.#apply({ type: "ended", reason, nowMs: this.#options.clock.nowMs() });
    if (wasQueued) this.emit("queue", null);
    this.emit("ended", { reason, state: this.#state });
  }

  /**
   * @param {string} code
   * @param {string} [message]
   * @param {number} [count]
   */
  #warn(code, message = "", count = 1) {
    this.emit("warning", { code, message, count });
  }

  /** @param {HalfEvent} event */
  #apply(event) {
    const next = reduceHalf(this.#state, event);
    if (next === this.#state) return;
    this.#state = next;
    this.emit("state", next);
  }
}
