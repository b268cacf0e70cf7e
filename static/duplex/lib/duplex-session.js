/** A full-duplex session: sends units of audio and pictures while receiving the answer. Pure. */

import { quantileOf, throttled } from "../../shared/async.js";
import { floatsToBase64 } from "../../shared/pcm.js";
import { endReason, numberOr0 } from "../../shared/server-messages.js";
import { activityOf, afterResult, breaksOff, cutTurn, isTurnStart, timeToSpeech } from "./full-duplex.js";
import { LiveSession } from "./live-session.js";
import { captioned, initialState, isMuted } from "./session-state.js";

/** @import { DuplexPrepared, DuplexServerMessage, Paused, Result, ResultPart } from "../../../types/protocol.js" */
/** @import { PlayerGap } from "../../../types/devices.js" */
/** @import { DuplexInput, DuplexSessionOptions, DuplexStart, SendOutcome, SpeakEvent } from "../../../types/duplex.js" */
/** @import { Phase, SessionState } from "./session-state.js" */
/** @import { UnitRecord } from "./full-duplex.js" */

const DEFAULT_MAX_KV_TOKENS = 8_192;
const DEFAULT_OUTPUT_RATE_HZ = 24_000;
const DRAIN_POLL_MS = 100;
const GAP_REPORT_MS = 500;
const GAPS_PER_MESSAGE = 20;
const MS_PER_S = 1_000;

/** @type {ReadonlySet<Phase>} */ const PAUSE = new Set(/** @type {Phase[]} */ (["pausing", "paused"]));
/** @type {ReadonlySet<Phase>} */ const TALK = new Set(/** @type {Phase[]} */ (["running", "pausing", "paused"]));
/** @type {ReadonlySet<Phase>} */ const LIVE = new Set(/** @type {Phase[]} */ ([...TALK, "stopping"]));

/** @extends {LiveSession<SessionState, DuplexStart>} */
export class DuplexSession extends LiveSession {
  #options;
  #seq = 0;
  #budget = new UploadBudget();
  /** After another socket took over: how many chunks were sent before, and when the first one was sent on it.
   * @type {{chunksSent: number, sentAtMs: number | null} | null}
   */
  #returned = null;
  /** @type {ReturnType<typeof setInterval> | undefined} */ #drainTimer;
  /** @type {PlayerGap[]} not yet reported */ #gaps = [];
  #gapsLeftOut = 0;
  /** Reports gaps as they occur, in at most two messages a second. */
  #reportGaps = throttled(() => {
    const gaps = this.#gaps.map(gapOnWire);
    if (gaps.length === 0) return;
    this.send({ type: "client_diagnostic", metrics: { event: "gap", gaps, gaps_left_out: this.#gapsLeftOut } });
    [this.#gaps, this.#gapsLeftOut] = [[], 0];
  }, GAP_REPORT_MS);

  constructor(/** @type {DuplexSessionOptions} */ given) {
    const options = {
      getMaxKvTokens: () => DEFAULT_MAX_KV_TOKENS,
      isAutoPauseOn: () => true,
      isDrained: () => true,
      outputSampleRateHz: DEFAULT_OUTPUT_RATE_HZ,
      ...given,
    };
    super(options, initialState, activityOf);
    this.#options = options;
  }

  /** Sends a picture ahead of its unit. @param {string} base64 JPEG, PNG or WebP @returns {boolean} Whether it was sent. */
  sendPicture(base64) {
    if (this.state.phase !== "running" || !this.isConnected) return false;
    if (!this.#budget.allowsPicture(this.bufferedBytes)) {
      this.warn("frames_left_out", "", 1);
      return false;
    }
    this.#budget.notePicture(this.send({ type: "video_frame", frame: base64 }));
    this.change({ framesSent: this.state.framesSent + 1 });
    return true;
  }

  /** Sends typed text to the model; it appears in the state's captions once the server accepts it. @param {string} text */
  sendText(text) {
    return TALK.has(this.state.phase) && this.isConnected && this.send({ type: "text_input", text }) > 0;
  }

  /** Sends the audio of one unit. @param {DuplexInput} input @returns {SendOutcome} */
  sendChunk({ audio, maxSliceNums }) {
    if (this.state.phase !== "running" || !this.isConnected) return "not_running";
    if (!this.#budget.allowsChunk(this.bufferedBytes)) {
      this.change({ chunksUploadDropped: this.state.chunksUploadDropped + 1 });
      this.warn("upload_slow", "", this.state.chunksUploadDropped);
      return "upload_dropped";
    }
    if (this.#returned) this.#returned.sentAtMs ??= this.clock.nowMs();
    const sentBytes = this.send({
      type: "audio_chunk",
      audio: floatsToBase64(audio),
      seq: this.#seq,
      client_ts: this.clock.unixMs() / MS_PER_S,
      ...(this.state.isForceListen && { force_listen: true }),
      ...(maxSliceNums && { max_slice_nums: maxSliceNums }),
    });
    this.#seq += 1;
    this.#budget.noteChunk(sentBytes);
    this.change({ chunksSent: this.state.chunksSent + 1 });
    return "sent";
  }

  /**
   * Pauses, or cancels a resumption in progress: stops sending, plays the rest, then is paused.
   * @param {{isAuto?: boolean}} [how] `isAuto`: resumes by itself when the page becomes visible.
   */
  pause({ isAuto = false } = {}) {
    const { phase, isResuming, isAutoPaused } = this.state;
    const isPause = PAUSE.has(phase);
    if (isPause && isAutoPaused && !isAuto && !isResuming) return this.change({ isAutoPaused: false }); // from now on it lasts
    if (phase !== "running" && !(isPause && isResuming)) return;
    const fresh = { isPauseConfirmed: false, isDrained: phase === "paused", isResuming: false };
    this.change({ phase: phase === "paused" ? phase : "pausing", isAutoPaused: isAuto, ...fresh });
    this.send({ type: "pause" });
    this.#checkDrained();
    if (this.state.isDrained) return;
    this.#drainTimer = setInterval(() => this.#checkDrained(), DRAIN_POLL_MS);
  }

  /**
   * Resumes after a pause, or cancels one in progress.
   * @param {{isAuto?: boolean}} [how] `isAuto`: not by the user, so that a hidden page first has to become visible.
   */
  resume({ isAuto = false } = {}) {
    if (!PAUSE.has(this.state.phase) || this.state.isResuming) return;
    if (isAuto && this.visibility.isHidden() && this.#options.isAutoPauseOn()) return this.change({ isAutoPaused: true });
    this.change({ isResuming: true });
    clearInterval(this.#drainTimer);
    this.send({ type: "resume" });
  }

  pauseToggle() {
    if (this.state.phase === "running") this.pause();
    else this.resume();
  }

  /** While on, the model has to listen and its audio is dropped. @param {boolean} isOn */
  setForceListen(isOn) {
    const { isForceListen, isAwaitingListen, isTurnOpen } = this.state;
    if (!this.isActive || isForceListen === isOn) return;
    this.change({ isForceListen: isOn, isAwaitingListen: isAwaitingListen || isTurnOpen });
    if (isOn) this.emit("flush", { cause: "force_listen" });
  }

  /** The user interrupted: drops the audio, and the next unit listens. */
  interrupt() {
    const { phase, isTurnOpen, aheadMs, turns } = this.state;
    if (!TALK.has(phase)) return;
    const isInterrupted = isTurnOpen || (aheadMs ?? 0) > 0;
    const last = turns.at(-1); // all of it may have arrived, but not all of it was played
    this.change({
      isAwaitingListen: true,
      aheadMs: aheadMs === null ? null : 0,
      isInterrupted,
      turns: isInterrupted && last ? [...turns.slice(0, -1), { ...last, isInterrupted }] : turns,
    });
    this.emit("flush", { cause: "interrupt" });
    this.send({ type: "interrupt" });
  }

  /** About five times a second. @param {{aheadMs: number, gapCount?: number, totalShiftMs?: number}} report */
  notePlayback({ aheadMs, gapCount = this.state.gapCount, totalShiftMs = this.state.totalShiftMs }) {
    const { phase, ...before } = this.state;
    const isSame = aheadMs === before.aheadMs && gapCount === before.gapCount && totalShiftMs === before.totalShiftMs;
    if (LIVE.has(phase) && !isSame) this.change({ aheadMs, gapCount, totalShiftMs });
  }

  /** The player ran out of audio: recorded in the timeline and reported to the server. @param {PlayerGap} gap */
  noteGap(gap) {
    if (!this.isActive) return;
    if (LIVE.has(this.state.phase)) this.change({ gapSinceUnitMs: this.state.gapSinceUnitMs + gap.gapMs });
    if (this.#gaps.length < GAPS_PER_MESSAGE) this.#gaps.push(gap);
    else this.#gapsLeftOut += 1;
    this.#reportGaps();
  }

  /** @param {DuplexStart} given @override @protected */
  prepareMessage({ systemPrompt, prepare }) {
    return { early_audio: true, ...prepare, type: "prepare", prefix_system_prompt: systemPrompt };
  }

  /** @param {DuplexPrepared} message @override @protected */
  preparedChange(message) {
    return {
      chunkMs: numberOr0(message.chunk_ms) || this.state.chunkMs,
      maxKvTokens: message.max_kv_tokens ?? null,
      pauseTimeoutS: numberOr0(message.pause_timeout) || this.state.pauseTimeoutS,
      kvTokens: numberOr0(message.prompt_tokens),
    };
  }

  /** @param {number | null} endedAtMs @returns {Partial<SessionState>} @override @protected */
  endChange(endedAtMs) {
    if (endedAtMs === null) return { pauseEndsAtMs: null };
    const noTurn = { isTurnOpen: false, isInterrupted: false, isAwaitingListen: false };
    const noPause = { pauseEndsAtMs: null, isResuming: false, isAutoPaused: false };
    return { ...noTurn, ...noPause, turns: cutTurn(this.state.turns, endedAtMs), isForceListen: false, aheadMs: null };
  }

  /** @param {DuplexServerMessage} message @override @protected */
  onTalk(message) {
    const { phase, isResuming, captions, units, chunksServerDropped } = this.state;
    switch (message.type) {
      case "result_part":
        if (LIVE.has(phase) && !isMuted(this.state)) this.#onPart(message);
        return;
      case "result":
        if (LIVE.has(phase)) this.#onResult(message);
        return;
      case "paused":
        if (PAUSE.has(phase) && !isResuming) this.#onPaused(message);
        return;
      case "resumed":
        if (!PAUSE.has(phase) || !isResuming) return;
        return this.change({ phase: "running", isResuming: false, isAutoPaused: false, pauseEndsAtMs: null });
      case "user_transcript":
      case "text_added":
        return this.change({ captions: captioned(captions, message, units, this.clock.nowMs()) });
      case "warning":
        if (message.code === "late_chunk") this.change({ chunksServerDropped: chunksServerDropped + 1 });
    }
  }

  #onPart(/** @type {ResultPart} */ { audio_data: audioBase64, turn_id: turnId, step }) {
    const before = this.state;
    const arrivalMs = this.clock.nowMs();
    this.change({ isHeardEarly: true, ttfsMs: timeToSpeech(before, arrivalMs) });
    this.#speak(before, { text: "", audioBase64, turnId, step, isTurnEnd: false, arrivalMs });
  }

  #onResult(/** @type {Result} */ result) {
    const before = this.state;
    this.change(afterResult(before, result, this.clock.nowMs(), this.clock.unixMs()));
    const unit = /** @type {UnitRecord} */ (this.state.units.at(-1));
    const { turnId, step, isEndOfTurn, arrivalMs } = unit;
    this.#countLost(unit);
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

  /** Once a chunk sent on the new socket is answered, those before it that were not are lost with the old one. */
  #countLost(/** @type {UnitRecord} */ { arrivalMs, wallClockMs }) {
    const { chunksSent = 0, sentAtMs = null } = this.#returned ?? {};
    if (sentAtMs === null || arrivalMs - wallClockMs < sentAtMs) return;
    const { chunksReceived, chunksServerDropped } = this.state;
    this.#returned = null;
    this.change({ chunksServerDropped: Math.max(chunksServerDropped, chunksSent + 1 - chunksReceived) });
  }

  #speak(/** @type {SessionState} */ before, /** @type {Omit<SpeakEvent, "sampleRateHz" | "isTurnStart">} */ speech) {
    this.emit("speak", { ...speech, sampleRateHz: this.#options.outputSampleRateHz, isTurnStart: isTurnStart(before) });
  }

  #onPaused(/** @type {Paused} */ message) {
    const pauseTimeoutS = numberOr0(message.timeout) || this.state.pauseTimeoutS;
    const pauseEndsAtMs = this.clock.nowMs() + pauseTimeoutS * MS_PER_S;
    this.#settlePause({ isPauseConfirmed: true, pauseTimeoutS, pauseEndsAtMs });
    this.#checkDrained();
  }

  #checkDrained() {
    const isPausing = () => this.state.phase === "pausing";
    if (isPausing() && !this.state.isDrained && this.#options.isDrained()) this.#settlePause({ isDrained: true });
    if (!isPausing() || this.state.isDrained) clearInterval(this.#drainTimer);
  }

  /** A pause needs the server's word and the end of the sound. @param {Partial<SessionState>} change */
  #settlePause(change) {
    const { isPauseConfirmed, isDrained } = { ...this.state, ...change };
    this.change(isPauseConfirmed && isDrained ? { ...change, phase: "paused" } : change);
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
    this.#returned = null;
  }

  /** The server answers `pause`, `resume` and, by listening, `interrupt`; those it has not answered may be lost. @override @protected */
  onReturn() {
    const { phase, isPauseConfirmed, isResuming, chunksSent, isInterrupted, isAwaitingListen } = this.state;
    this.#returned = { chunksSent, sentAtMs: null };
    if (PAUSE.has(phase) && !isPauseConfirmed) this.send({ type: "pause" });
    if (isResuming) this.send({ type: "resume" });
    if (isInterrupted && isAwaitingListen) this.send({ type: "interrupt" });
  }

  /** @override @protected */
  onLeave() {
    if (this.state.preparedAtMs === null) return;
    this.#gaps = []; // the totals contain them
    this.send({ type: "client_diagnostic", metrics: sessionSummary(this.state, this.clock.nowMs()) });
  }

  /** @override @protected */
  onOver() {
    clearInterval(this.#drainTimer);
    this.#gaps = [];
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

// Playback reports to the server.

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
