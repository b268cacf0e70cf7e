// @ts-check
/**
 * One full-duplex session: the socket around `session-state.js`. Device.
 *
 * Emits codes, never sentences. It owns no microphone, camera or player: the page sends chunks in
 * and plays what `speak` brings, throws sound away on `flush`, and says when all was played.
 */

import { Emitter } from "../../shared/emitter.js";
import { endReason, messageText } from "../../shared/end-reasons.js";
import { probeServer, newSessionId, socketUrl } from "../../shared/live-socket.js";
import { floatsToBase64 } from "../../shared/pcm.js";
import { alwaysVisible } from "../../shared/page-visibility.js";
import { openSessionLink } from "../../shared/session-link.js";
import { createDiagnostics } from "./diagnostics.js";
import { initialState, isMuted, reduce } from "./session-state.js";
import { breaksOff, isTurnStart } from "./unit-log.js";
import { UploadBudget } from "./upload-budget.js";

/** @typedef {import("../../shared/protocol.js").DuplexPrepared} DuplexPrepared */
/** @typedef {import("../../shared/protocol.js").DuplexServerMessage} DuplexServerMessage */
/** @typedef {import("../../shared/protocol.js").Result} Result */
/** @typedef {import("../../shared/protocol.js").ResultPart} ResultPart */
/** @typedef {import("../../shared/end-reasons.js").EndReason} EndReason */
/** @typedef {import("../../shared/live-socket.js").WireMessage} WireMessage */
/** @typedef {import("../../shared/session-link.js").SessionLink} SessionLink */
/** @typedef {import("./session-state.js").SessionState} SessionState */
/** @typedef {import("./session-state.js").SessionEvent} SessionEvent */
/** @typedef {import("./unit-log.js").UnitRecord} UnitRecord */
/** @typedef {import("./duplex-types.js").DuplexSessionOptions} DuplexSessionOptions */
/** @typedef {import("./duplex-types.js").DuplexStart} DuplexStart */
/** @typedef {import("./duplex-types.js").DuplexInput} DuplexInput */
/** @typedef {import("./duplex-types.js").DuplexEvents} DuplexEvents */
/** @typedef {import("./duplex-types.js").SpeakEvent} SpeakEvent */
/** @typedef {import("./duplex-types.js").SendOutcome} SendOutcome */

const DEFAULT_MAX_KV_TOKENS = 8_192;
const DEFAULT_OUTPUT_RATE_HZ = 24_000;
const DRAIN_POLL_MS = 100;
const MS_PER_S = 1_000;

/** @extends {Emitter<DuplexEvents>} */
export class DuplexSession extends Emitter {
  #options;
  #state = initialState();
  /** @type {SessionLink | null} */
  #link = null;
  /** @type {DuplexStart | null} */
  #given = null;
  #seq = 0;
  #budget = new UploadBudget();
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #drainTimer;
  #diagnostics;
  /** @type {(() => void)[]} */
  #offs = [];

  /** @param {DuplexSessionOptions} options */
  constructor(options) {
    super();
    const appId = options.appId ?? (options.idPrefix.startsWith("adx") ? "audio_duplex" : "omni");
    this.#options = {
      getMaxKvTokens: () => DEFAULT_MAX_KV_TOKENS,
      isAutoPauseOn: () => true,
      isDrained: () => true,
      outputSampleRateHz: DEFAULT_OUTPUT_RATE_HZ,
      url: (/** @type {string} */ sessionId) => socketUrl("duplex", sessionId),
      socketFactory: undefined,
      clock: { nowMs: () => performance.now(), unixMs: () => Date.now() },
      visibility: alwaysVisible(),
      probe: () => probeServer(appId),
      ...options,
    };
    const { clock, visibility } = this.#options;
    const send = (/** @type {object} */ message) => this.#link?.send(message) ?? 0;
    this.#diagnostics = createDiagnostics({ send, nowMs: clock.nowMs });
    this.#offs.push(visibility.onChange((isHidden) => this.#onVisibility(isHidden)));
    this.#offs.push(visibility.onPageHide(() => this.#drop()));
  }

  /** What is known of the session; replaced, never changed. */
  get state() {
    return this.#state;
  }

  /** Whether a session goes on, from connecting to stopping. */
  get isActive() {
    return this.#state.phase !== "idle" && this.#state.phase !== "ended";
  }

  /**
   * Connect, queue and prepare; `prepared` or `ended` follows. Does nothing while one goes on.
   * @param {DuplexStart} given
   * @returns {string} The session's id.
   */
  start(given) {
    if (this.isActive) return this.#state.sessionId;
    const { idPrefix, clock, url, socketFactory, probe } = this.#options;
    const sessionId = newSessionId(idPrefix, clock.unixMs());
    this.#given = given;
    this.#seq = 0;
    this.#budget = new UploadBudget();
    this.#link = openSessionLink({
      url: url(sessionId),
      socketFactory,
      probe,
      onMessage: (message) => this.#onMessage(message),
      onMalformed: () => this.#warn("malformed_message"),
      onConnection: (isThere) => this.#warn(isThere ? "reconnected" : "reconnecting"),
      onEnd: (reason) => this.#onEnd(reason),
    });
    this.#apply({ type: "start", sessionId, nowMs: clock.nowMs() });
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
   * Send a picture ahead of the unit it belongs to.
   * @param {string} base64 JPEG, PNG or WebP
   * @returns {boolean} Whether it went out.
   */
  sendPicture(base64) {
    if (this.#state.phase !== "running" || !this.#link?.isOpen()) return false;
    if (!this.#budget.allowsPicture(this.#link.bufferedBytes())) {
      this.#warn("frames_left_out", "", 1);
      return false;
    }
    this.#budget.notePicture(this.#link.send({ type: "video_frame", frame: base64 }));
    this.#apply({ type: "picture_sent" });
    return true;
  }

  /** Tell the model what was typed; the state's captions have it once it is taken. @param {string} text */
  sendText(text) {
    const isTalk = ["running", "pausing", "paused"].includes(this.#state.phase);
    return isTalk && (this.#link?.send({ type: "text_input", text }) ?? 0) > 0;
  }

  /**
   * Send one unit's sound.
   * @param {DuplexInput} input
   * @returns {SendOutcome}
   */
  sendChunk(input) {
    if (this.#state.phase !== "running" || !this.#link?.isOpen()) {
      this.#apply({ type: "chunk_dropped", why: "idle" });
      return "not_running";
    }
    if (!this.#budget.allowsChunk(this.#link.bufferedBytes())) {
      this.#apply({ type: "chunk_dropped", why: "upload" });
      this.#warn("upload_slow", "", this.#state.chunksUploadDropped);
      return "upload_dropped";
    }
    this.#budget.noteChunk(this.#sendUnit(input));
    this.#apply({ type: "chunk_sent" });
    return "sent";
  }

  /**
   * Pause: sends no more, plays the rest, then is paused.
   * @param {{isAuto?: boolean}} [how] `isAuto` ends by itself when the page is seen again.
   */
  pause({ isAuto = false } = {}) {
    if (this.#state.phase !== "running") return;
    this.#apply({ type: "pause_asked", isAuto });
    this.#link?.send({ type: "pause" });
    this.#checkDrained();
    if (this.#state.isDrained) return;
    this.#drainTimer = setInterval(() => this.#checkDrained(), DRAIN_POLL_MS);
  }

  /** Go on after a pause, or take one back that is still being made. */
  resume() {
    const before = this.#state;
    this.#apply({ type: "resume_asked" });
    if (this.#state === before) return;
    clearInterval(this.#drainTimer);
    this.#link?.send({ type: "resume" });
  }

  /** The pause button. */
  pauseToggle() {
    if (this.#state.phase === "running") this.pause();
    else this.resume();
  }

  /**
   * While on, the model must listen and nothing of it is played.
   * @param {boolean} isOn
   */
  setForceListen(isOn) {
    const before = this.#state;
    this.#apply({ type: "force_listen", isOn });
    if (this.#state !== before && isOn) this.emit("flush", { cause: "force_listen" });
  }

  /** The user spoke into it: silence at once, and the next unit listens. */
  interrupt() {
    const before = this.#state;
    this.#apply({ type: "interrupt_asked" });
    if (this.#state === before) return;
    this.emit("flush", { cause: "interrupt" });
    this.#link?.send({ type: "interrupt" });
  }

  /** End the session, whatever it is doing. */
  stop() {
    const { phase } = this.#state;
    const isWaiting = phase === "connecting" || phase === "queued";
    this.#leave(endReason(isWaiting ? "cancelled" : "stopped"));
  }

  /** End at once and listen to the page no more; the object is of no use afterwards. */
  close() {
    this.#drop();
    for (const off of this.#offs.splice(0)) off();
  }

  /**
   * The player's report, about five times a second.
   * @param {{aheadMs: number, gapCount?: number, totalShiftMs?: number}} report
   */
  notePlayback(report) {
    this.#apply({ type: "playback", ...report });
  }

  /**
   * The player ran dry: goes into the timeline, and to the server.
   * @param {import("./diagnostics.js").Gap} gap
   */
  noteGap(gap) {
    if (!this.isActive) return;
    this.#apply({ type: "gap", gapMs: gap.gapMs });
    this.#diagnostics.noteGap(gap);
  }

  /**
   * @param {DuplexInput} input
   * @returns {number} Bytes of the message.
   */
  #sendUnit(input) {
    const message = {
      type: "audio_chunk",
      audio: floatsToBase64(input.audio),
      seq: this.#seq,
      client_ts: this.#options.clock.unixMs() / MS_PER_S,
      ...(this.#state.isForceListen && { force_listen: true }),
      ...(input.maxSliceNums && { max_slice_nums: input.maxSliceNums }),
    };
    this.#seq += 1;
    return this.#link?.send(message) ?? 0;
  }

  /** @param {WireMessage} wire */
  #onMessage(wire) {
    const { clock } = this.#options;
    const nowMs = clock.nowMs();
    const before = this.#state;
    // The types promise what the server sends; the reducer reads each field with care.
    const message = /** @type {DuplexServerMessage} */ (/** @type {unknown} */ (wire));
    this.#apply({ type: "server", message, nowMs, unixMs: clock.unixMs() });
    if (message.type === "warning") return this.#warn(message.code, messageText(wire));
    if (message.type === "user_transcript" && message.error) this.#warn("no_captions", message.error);
    if (this.#state === before) return;
    if (this.#state.queue !== before.queue) this.emit("queue", this.#state.queue);
    if (message.type === "queue_done") this.#onQueueDone();
    else if (message.type === "prepared") this.#onPrepared(message);
    else if (message.type === "result_part") this.#onPart(message, before);
    else if (message.type === "result") this.#onResult(message, before);
    else if (message.type === "paused") this.#checkDrained();
  }

  #onQueueDone() {
    this.emit("queuedone", null);
    const { systemPrompt, prepare } = /** @type {DuplexStart} */ (this.#given);
    this.#link?.send({ early_audio: true, ...prepare, type: "prepare", prefix_system_prompt: systemPrompt });
  }

  /** @param {DuplexPrepared} message */
  #onPrepared(message) {
    this.emit("prepared", message);
    if (this.#options.visibility.isHidden()) this.#onVisibility(true);
  }

  /**
   * @param {Result} result
   * @param {SessionState} before
   */
  #onResult(result, before) {
    const unit = /** @type {UnitRecord} */ (this.#state.units.at(-1));
    if (breaksOff(result, before.isTurnOpen)) this.emit("flush", { cause: "barge_in" });
    else if (!unit.isListen && !isMuted(before)) {
      this.emit("speak", this.#speech(result, unit, before));
    }
    if (!unit.isListen && unit.isEndOfTurn) this.emit("turnend", { turnId: unit.turnId });
    this.emit("result", { result, unit });
    const maxKvTokens = this.#options.getMaxKvTokens();
    if (maxKvTokens > 0 && this.#state.kvTokens >= maxKvTokens) this.#leave(endReason("kv_limit"));
  }

  /**
   * @param {ResultPart} part
   * @param {SessionState} before
   */
  #onPart(part, before) {
    this.emit("speak", {
      text: "",
      audioBase64: part.audio_data,
      sampleRateHz: this.#options.outputSampleRateHz,
      turnId: part.turn_id,
      step: part.step,
      isTurnStart: isTurnStart(before),
      isTurnEnd: false,
      arrivalMs: this.#options.clock.nowMs(),
    });
  }

  /**
   * @param {Result} result
   * @param {UnitRecord} unit
   * @param {SessionState} before
   * @returns {SpeakEvent}
   */
  #speech(result, unit, before) {
    return {
      text: result.text || "",
      audioBase64: result.audio_data || "",
      sampleRateHz: this.#options.outputSampleRateHz,
      turnId: unit.turnId,
      step: unit.step,
      isTurnStart: isTurnStart(before),
      isTurnEnd: unit.isEndOfTurn,
      arrivalMs: unit.arrivalMs,
    };
  }

  #checkDrained() {
    const isPausing = () => this.#state.phase === "pausing";
    if (isPausing() && this.#options.isDrained()) this.#apply({ type: "drained" });
    if (!isPausing() || this.#state.isDrained) clearInterval(this.#drainTimer);
  }

  /** @param {boolean} isHidden */
  #onVisibility(isHidden) {
    if (isHidden && this.#options.isAutoPauseOn()) this.pause({ isAuto: true });
    else if (!isHidden && this.#state.isAutoPaused) this.resume();
  }

  /** @param {EndReason} reason */
  #leave(reason) {
    if (!this.isActive || this.#state.phase === "stopping") return;
    const wasRunning = this.#state.preparedAtMs !== null;
    this.#apply({ type: "stop_asked" });
    this.emit("flush", { cause: "stop" });
    if (wasRunning) this.#diagnostics.sendSummary(this.#state);
    this.#link?.leave(reason);
  }

  #drop() {
    if (!this.isActive) return;
    if (this.#state.preparedAtMs !== null) this.#diagnostics.sendSummary(this.#state);
    this.#link?.drop(endReason("page_left"));
  }

  /** @param {EndReason} reason */
  #onEnd(reason) {
    clearInterval(this.#drainTimer);
    this.#diagnostics.close();
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

  /** @param {SessionEvent} event */
  #apply(event) {
    const next = reduce(this.#state, event);
    if (next === this.#state) return;
    this.#state = next;
    this.emit("state", next);
  }
}
