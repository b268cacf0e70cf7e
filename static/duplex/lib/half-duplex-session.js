/**
 * A half-duplex session: the microphone's gate is open while listening and closed during the answer. Pure.
 *
 * The page passes in every captured chunk; those captured while the gate is closed are dropped here.
 */

import { floatsToBase64 } from "../../shared/pcm.js";
import { initialHalfState, isMicOpen, remainingS } from "./session-state.js";
import { reduceHalf } from "./half-duplex.js";
import { LiveSession } from "./live-session.js";

/** @import { WireMessage } from "../../shared/live-socket.js" */
/** @import { Chunk, HalfDuplexPrepare, HalfDuplexServerMessage } from "../../../types/protocol.js" */
/** @import { LinkOptions, SendOutcome } from "../../../types/duplex.js" */
/** @import { HalfEvent, HalfState } from "./session-state.js" */

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

  /** @param {HalfDuplexOptions} given */
  constructor(given) {
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

  /** @param {Chunk} message @param {HalfState} before */
  #onPiece(message, before) {
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
