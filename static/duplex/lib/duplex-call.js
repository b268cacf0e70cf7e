// @ts-check
/** A full-duplex call: what a call has, with barge-in, pause, typed text and files in place of a microphone. Pure. */

import { Call } from "./call.js";
import { initialState } from "./session-state.js";
import { UserTurns } from "./user-turns.js";

/** @import { AudioPlayer } from "./audio-player.js" */
/** @import { BargeIn, VoiceDetector } from "./barge-in.js" */
/** @import { DuplexSession } from "./duplex-session.js" */
/** @import { DuplexCallOptions, LiveSource, SessionState } from "./duplex-types.js" */

const FINISH_POLL_MS = 100;

/** @extends {Call<DuplexSession>} */
export class DuplexCall extends Call {
  #options;
  /** @type {BargeIn | null} */
  #bargeIn = null;
  /** @type {VoiceDetector | null} */
  #detector = null;
  #userTurns = new UserTurns();
  #isPaused = false;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #finishTimer;
  #delayMs = 0;

  /** @param {DuplexCallOptions} options */
  constructor(options) {
    super(options);
    this.#options = options;
  }

  get userTurns() {
    return this.#userTurns;
  }

  /** Playback delay aimed at, ms. */
  get delayMs() {
    return this.player?.metrics.targetDelayMs ?? this.#options.settings().playbackDelayMs;
  }

  pauseToggle() {
    this.session?.pauseToggle();
  }

  /** @param {string} text typed @returns {boolean} whether it went out */
  sendText(text) {
    return this.session?.sendText(text) ?? false;
  }

  /** @param {string} base64 a picture ahead of its unit @returns {boolean} whether it went out */
  sendPicture(base64) {
    return this.session?.sendPicture(base64) ?? false;
  }

  toggleForceListen() {
    this.session?.setForceListen(!this.state.isForceListen);
  }

  /** @override */
  applySettings() {
    const { playbackDelayMs } = this.#options.settings();
    if (playbackDelayMs !== this.#delayMs) this.player?.setDelay(playbackDelayMs);
    this.#delayMs = playbackDelayMs;
    this.#enableBargeIn();
    super.applySettings();
  }

  /** Ask a voice detector as well before the user counts as speaking. @param {VoiceDetector | null} detector */
  setDetector(detector) {
    this.#detector = detector;
    this.#bargeIn?.setDetector(detector);
  }

  /** @override @protected */
  initialState() {
    return initialState();
  }

  /** @override @protected */
  sessionOptions() {
    const { settings } = this.#options;
    return { getMaxKvTokens: () => settings().maxKvTokens, isAutoPauseOn: () => settings().isAutoPauseOn };
  }

  /** @param {SessionState} state @override @protected */
  onState({ phase }) {
    const isPaused = phase === "pausing" || phase === "paused";
    if (isPaused === this.#isPaused) return;
    this.#isPaused = isPaused;
    isPaused ? this.source?.pause?.() : this.source?.resume?.();
    this.#enableBargeIn();
  }

  /** @override @protected */
  onFlush() {
    this.#bargeIn?.flush();
  }

  /** @override @protected */
  onStart() {
    this.#userTurns.clear();
  }

  /** @param {boolean} isMuted @override @protected */
  onMuted(isMuted) {
    if (isMuted) this.#userTurns.end();
    this.#enableBargeIn();
  }

  /** @param {AudioPlayer} player @override @protected */
  async onPlayer(player) {
    this.#delayMs = this.#options.settings().playbackDelayMs;
    const bargeIn = await this.#options.parts.openBargeIn(player);
    this.#bargeIn = bargeIn;
    bargeIn.setDetector(this.#detector);
    bargeIn.addEventListener("interrupt", () => this.interrupt());
    bargeIn.addEventListener("state", () => this.setDevices({ isHeld: bargeIn.state === "held" }));
    /** @param {string} type @param {(detail: any) => void} listener `any`: each event has its own detail */
    const on = (type, listener) => player.addEventListener(type, (event) => listener(/** @type {CustomEvent} */ (event).detail));
    on("metrics", (report) => this.session?.notePlayback(report));
    on("gap", (gap) => this.session?.noteGap(gap));
  }

  /** @param {LiveSource} source @override @protected */
  onSource(source) {
    this.#bargeIn?.attach(source);
    this.#enableBargeIn();
  }

  /** @param {boolean} isLost @override @protected */
  onSourceLost(isLost) {
    if (isLost) this.session?.pause();
    else this.session?.resume();
  }

  #enableBargeIn() {
    // A source that stands still could never let go of an answer that is held.
    const isDeaf = this.devices.isMuted || (this.#isPaused && this.source?.pause !== undefined);
    this.#bargeIn?.setEnabled(this.#options.settings().isBargeInOn && !isDeaf);
  }

  /** @param {number} rms @override @protected */
  onLevel(rms) {
    if (this.state.phase !== "running" || this.devices.isMuted) return;
    const { version } = this.#userTurns;
    this.#userTurns.push(rms, performance.now());
    if (this.#userTurns.version !== version) this.emit("heard", null);
  }

  /** @param {Float32Array} audio @override @protected */
  send(audio) {
    if (this.devices.isMuted) audio.fill(0);
    const outcome = this.session?.sendChunk({ audio, maxSliceNums: this.#options.maxSliceNums?.() });
    return outcome !== undefined && outcome !== "not_running";
  }

  /** Let the model finish what it says, then end. @override @protected */
  onFileOver() {
    this.emit("sourceended", null);
    clearInterval(this.#finishTimer);
    this.#finishTimer = setInterval(() => {
      const { chunksSent, chunksReceived, chunksServerDropped } = this.state;
      const isAnswered = chunksReceived + chunksServerDropped >= chunksSent;
      if (isAnswered && !this.player?.isPlaying) this.stop();
    }, FINISH_POLL_MS);
  }

  /** @override @protected */
  onClosing() {
    clearInterval(this.#finishTimer);
    this.#userTurns.end();
    this.#bargeIn?.close();
    this.#bargeIn = null;
  }
}
