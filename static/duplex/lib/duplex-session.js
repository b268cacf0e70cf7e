/** A full-duplex session: sends units of audio and pictures while receiving the answer. Pure. */

import { quantileOf, throttled } from "../../shared/async.js";
import { floatsToBase64 } from "../../shared/pcm.js";
import { endReason } from "../../shared/server-messages.js";
import { breaksOff, isTurnStart, reduce } from "./full-duplex.js";
import { LiveSession } from "./live-session.js";
import { initialState, isMuted } from "./session-state.js";

/** @import { WireMessage } from "../../shared/live-socket.js" */
/** @import { DuplexServerMessage, Result } from "../../../types/protocol.js" */
/** @import { PlayerGap } from "../../../types/devices.js" */
/** @import { DuplexInput, DuplexSessionOptions, DuplexStart, SendOutcome, SessionEvent, SpeakEvent } from "../../../types/duplex.js" */
/** @import { SessionState } from "./session-state.js" */
/** @import { UnitRecord } from "./full-duplex.js" */

const DEFAULT_MAX_KV_TOKENS = 8_192;
const DEFAULT_OUTPUT_RATE_HZ = 24_000;
const DRAIN_POLL_MS = 100;
const MS_PER_S = 1_000;

/** @extends {LiveSession<SessionState, SessionEvent, DuplexStart>} */
export class DuplexSession extends LiveSession {
  #options;
  #seq = 0;
  #budget = new UploadBudget();
  /** @type {ReturnType<typeof setInterval> | undefined} */ #drainTimer;
  #diagnostics;

  constructor(/** @type {DuplexSessionOptions} */ given) {
    const options = {
      getMaxKvTokens: () => DEFAULT_MAX_KV_TOKENS,
      isAutoPauseOn: () => true,
      isDrained: () => true,
      outputSampleRateHz: DEFAULT_OUTPUT_RATE_HZ,
      ...given,
    };
    super(options, initialState(), reduce);
    this.#options = options;
    this.#diagnostics = createDiagnostics((message) => this.link?.send(message));
  }

  /** Sends a picture ahead of its unit. @param {string} base64 JPEG, PNG or WebP @returns {boolean} Whether it was sent. */
  sendPicture(base64) {
    if (this.state.phase !== "running" || !this.link?.isOpen()) return false;
    if (!this.#budget.allowsPicture(this.link.bufferedBytes())) {
      this.warn("frames_left_out", "", 1);
      return false;
    }
    this.#budget.notePicture(this.link.send({ type: "video_frame", frame: base64 }));
    this.apply({ type: "picture_sent" });
    return true;
  }

  /** Sends typed text to the model; it appears in the state's captions once the server accepts it. @param {string} text */
  sendText(text) {
    const isTalk = ["running", "pausing", "paused"].includes(this.state.phase);
    return isTalk && (this.link?.send({ type: "text_input", text }) ?? 0) > 0;
  }

  /** Sends the audio of one unit. @param {DuplexInput} input @returns {SendOutcome} */
  sendChunk(input) {
    if (this.state.phase !== "running" || !this.link?.isOpen()) return "not_running";
    if (!this.#budget.allowsChunk(this.link.bufferedBytes())) {
      this.apply({ type: "chunk_dropped" });
      this.warn("upload_slow", "", this.state.chunksUploadDropped);
      return "upload_dropped";
    }
    this.#budget.noteChunk(this.#sendUnit(input));
    this.apply({ type: "chunk_sent" });
    return "sent";
  }

  /**
   * Pauses: stops sending, plays the rest, then is paused.
   * @param {{isAuto?: boolean}} [how] `isAuto`: resumes by itself when the page becomes visible.
   */
  pause({ isAuto = false } = {}) {
    if (this.state.phase !== "running") return;
    this.apply({ type: "pause_asked", isAuto });
    this.link?.send({ type: "pause" });
    this.#checkDrained();
    if (this.state.isDrained) return;
    this.#drainTimer = setInterval(() => this.#checkDrained(), DRAIN_POLL_MS);
  }

  /** Resumes after a pause, or cancels one in progress. */
  resume() {
    if (!this.apply({ type: "resume_asked" })) return;
    clearInterval(this.#drainTimer);
    this.link?.send({ type: "resume" });
  }

  pauseToggle() {
    if (this.state.phase === "running") this.pause();
    else this.resume();
  }

  /** While on, the model has to listen and its audio is dropped. @param {boolean} isOn */
  setForceListen(isOn) {
    if (this.apply({ type: "force_listen", isOn }) && isOn) this.emit("flush", { cause: "force_listen" });
  }

  /** The user interrupted: drops the audio, and the next unit listens. */
  interrupt() {
    if (!this.apply({ type: "interrupt_asked" })) return;
    this.emit("flush", { cause: "interrupt" });
    this.link?.send({ type: "interrupt" });
  }

  /** About five times a second. @param {{aheadMs: number, gapCount?: number, totalShiftMs?: number}} report */
  notePlayback(report) {
    this.apply({ type: "playback", ...report });
  }

  /** The player ran out of audio: recorded in the timeline and reported to the server. @param {PlayerGap} gap */
  noteGap(gap) {
    if (!this.isActive) return;
    this.apply({ type: "gap", gapMs: gap.gapMs });
    this.#diagnostics.noteGap(gap);
  }

  /** @param {DuplexInput} input @returns {number} Bytes of the message. */
  #sendUnit(input) {
    const message = {
      type: "audio_chunk",
      audio: floatsToBase64(input.audio),
      seq: this.#seq,
      client_ts: this.clock.unixMs() / MS_PER_S,
      ...(this.state.isForceListen && { force_listen: true }),
      ...(input.maxSliceNums && { max_slice_nums: input.maxSliceNums }),
    };
    this.#seq += 1;
    return this.link?.send(message) ?? 0;
  }

  /** @param {DuplexStart} given @override @protected */
  prepareMessage({ systemPrompt, prepare }) {
    return { early_audio: true, ...prepare, type: "prepare", prefix_system_prompt: systemPrompt };
  }

  /** @param {WireMessage} wire @param {SessionState} before @override @protected */
  onTalk(wire, before) {
    const message = /** @type {DuplexServerMessage} */ (/** @type {unknown} */ (wire));
    if (message.type === "result_part") {
      const { audio_data: audio, turn_id: turnId, step } = message;
      this.#speak(before, { text: "", audioBase64: audio, turnId, step, isTurnEnd: false, arrivalMs: this.clock.nowMs() });
    } else if (message.type === "result") this.#onResult(message, before);
    else if (message.type === "paused") this.#checkDrained();
  }

  #onResult(/** @type {Result} */ result, /** @type {SessionState} */ before) {
    const unit = /** @type {UnitRecord} */ (this.state.units.at(-1));
    const { turnId, step, isEndOfTurn, arrivalMs } = unit;
    if (breaksOff(result, before.isTurnOpen)) this.emit("flush", { cause: "barge_in" });
    else if (!unit.isListen && !isMuted(before)) {
      const [text, audioBase64] = [result.text || "", result.audio_data || ""];
      this.#speak(before, { text, audioBase64, turnId, step, isTurnEnd: isEndOfTurn, arrivalMs });
    }
    if (!unit.isListen && isEndOfTurn) this.emit("turnend", { turnId });
    this.emit("result", { result, unit });
    const maxKvTokens = this.#options.getMaxKvTokens();
    if (maxKvTokens > 0 && this.state.kvTokens >= maxKvTokens) this.leave(endReason("kv_limit"));
  }

  #speak(/** @type {SessionState} */ before, /** @type {Omit<SpeakEvent, "sampleRateHz" | "isTurnStart">} */ speech) {
    this.emit("speak", { ...speech, sampleRateHz: this.#options.outputSampleRateHz, isTurnStart: isTurnStart(before) });
  }

  #checkDrained() {
    const isPausing = () => this.state.phase === "pausing";
    if (isPausing() && this.#options.isDrained()) this.apply({ type: "drained" });
    if (!isPausing() || this.state.isDrained) clearInterval(this.#drainTimer);
  }

  /** @param {boolean} isHidden @override @protected */
  onVisibility(isHidden) {
    if (isHidden && this.#options.isAutoPauseOn()) this.pause({ isAuto: true });
    else if (!isHidden && this.state.isAutoPaused) this.resume();
  }

  /** @override @protected */
  onStarted() {
    this.#seq = 0;
    this.#budget = new UploadBudget();
  }

  /** The server answers `pause` and `resume`; those it has not answered may be lost. @override @protected */
  onReturn() {
    const { phase, isPauseConfirmed, isResuming } = this.state;
    if (phase === "pausing" && !isPauseConfirmed) this.link?.send({ type: "pause" });
    if (isResuming) this.link?.send({ type: "resume" });
  }

  /** @override @protected */
  onLeave() {
    if (this.state.preparedAtMs !== null) this.#diagnostics.sendSummary(this.state, this.clock.nowMs());
  }

  /** @override @protected */
  onOver() {
    clearInterval(this.#drainTimer);
    this.#diagnostics.close();
  }
}

// Bound on unsent data: three units, as many as the server queues.

const BACKLOG_UNITS = 3;
const FLOOR_BYTES = 256 * 1024;

export class UploadBudget {
  #largestUnitBytes = 0;
  #pictureBytes = 0; // pictures of the unit whose audio is not sent yet

  allowsPicture(/** @type {number} */ waitingBytes) {
    return waitingBytes <= this.#mostBytes / 2;
  }

  allowsChunk(/** @type {number} */ waitingBytes) {
    return waitingBytes <= this.#mostBytes;
  }

  notePicture(/** @type {number} */ bytes) {
    this.#pictureBytes += bytes;
  }

  noteChunk(/** @type {number} */ bytes) {
    this.#largestUnitBytes = Math.max(this.#largestUnitBytes, this.#pictureBytes + bytes);
    this.#pictureBytes = 0;
  }

  get #mostBytes() {
    return Math.max(FLOOR_BYTES, BACKLOG_UNITS * this.#largestUnitBytes);
  }
}

// Playback reports to the server: gaps as they occur, at most two messages a second, and totals at the end.

const PERIOD_MS = 500;
const GAPS_PER_MESSAGE = 20;

function createDiagnostics(/** @type {(message: object) => void} */ send) {
  /** @type {PlayerGap[]} */ let waiting = [];
  let leftOut = 0;
  const flush = throttled(() => {
    if (waiting.length === 0) return;
    send({ type: "client_diagnostic", metrics: { event: "gap", gaps: waiting.map(gapOnWire), gaps_left_out: leftOut } });
    [waiting, leftOut] = [[], 0];
  }, PERIOD_MS);
  return {
    noteGap(/** @type {PlayerGap} */ gap) {
      if (waiting.length < GAPS_PER_MESSAGE) waiting.push(gap);
      else leftOut += 1;
      flush();
    },
    /** The session ends; its totals contain the gaps that still wait. @param {SessionState} state @param {number} nowMs */
    sendSummary(state, nowMs) {
      waiting = [];
      send({ type: "client_diagnostic", metrics: sessionSummary(state, nowMs) });
    },
    close: () => void (waiting = []),
  };
}

function gapOnWire(/** @type {PlayerGap} */ gap) {
  return {
    gap_idx: gap.gapIndex,
    gap_ms: Math.round(gap.gapMs),
    total_shift_ms: Math.round(gap.totalShiftMs),
    chunk_idx: gap.chunkIndex ?? null,
    turn: gap.turn ?? null,
  };
}

/** Summary of the session. @param {SessionState} state @param {number} nowMs @returns {Record<string, unknown>} */
function sessionSummary(state, nowMs) {
  const walls = state.units.map((unit) => unit.wallClockMs);
  return {
    event: "summary",
    running_ms: Math.round(nowMs - (state.preparedAtMs ?? nowMs)),
    chunks_sent: state.chunksSent,
    chunks_received: state.chunksReceived,
    chunks_dropped_upload: state.chunksUploadDropped,
    chunks_dropped_server: state.chunksServerDropped,
    frames_sent: state.framesSent,
    turns: state.turnCount,
    kv_tokens: state.kvTokens,
    ttfs_ms: rounded(state.ttfsMs),
    drift_ms: rounded(state.driftMs),
    gaps: state.gapCount,
    total_shift_ms: Math.round(state.totalShiftMs),
    wall_clock_p50_ms: rounded(quantileOf(walls, 0.5)),
    wall_clock_p99_ms: rounded(quantileOf(walls, 0.99)),
  };
}

const rounded = (/** @type {number | null} */ value) => (value === null ? null : Math.round(value));
