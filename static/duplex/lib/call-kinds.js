/** Strategies of a call: full duplex with barge-in, pauses and files; half duplex with a gated microphone. Pure. */

import { Call } from "./call.js";
import { initialHalfState, initialState, UserTurns } from "./session-state.js";

/** @import { AudioPlayer } from "./audio-player.js" */
/** @import { BargeIn, VoiceDetector } from "./barge-in.js" */
/** @import { DuplexSession } from "./duplex-session.js" */
/** @import { CallOptions, DuplexCallOptions, LiveSource } from "../../../types/duplex.js" */
/** @import { SessionState } from "./session-state.js" */
/** @import { HalfDuplexSession } from "./half-duplex-session.js" */

/** @typedef {Call<DuplexSession, FullDuplex>} DuplexCall */
/** @typedef {Call<HalfDuplexSession, import("./call.js").CallKind<HalfDuplexSession>>} HalfCall */

/** Half a second at 16 kHz. Source: docs/specification/service.md#7.6. */
export const HALF_CHUNK_SAMPLES = 8_000;

const FINISH_POLL_MS = 100;
const FINISH_QUIET_POLLS = 150; // 15 s without a result: the rest was dropped, of which the server does not report each chunk

/** @param {DuplexCallOptions} options @returns {DuplexCall} */
export const duplexCall = (options) => new Call(options, (call) => new FullDuplex(call, options));

/** The session itself gates the microphone. @param {CallOptions<HalfDuplexSession> & {getMaxSessionS?: () => number}} options */
export const halfDuplexCall = ({ getMaxSessionS = () => 0, ...options }) =>
  new Call(options, (call) => ({
    initialState: initialHalfState,
    sessionOptions: { getMaxSessionS },
    onStart: () => call.session?.setMicMuted(false),
    onMuted: (isMuted) => call.session?.setMicMuted(isMuted),
    send: (audio) => call.session?.sendChunk({ audio }) === "sent",
  }));

class FullDuplex {
  initialState = initialState;
  #call;
  #options;
  /** @type {BargeIn | null} */ #bargeIn = null;
  /** @type {VoiceDetector | null} */ #detector = null;
  userTurns = new UserTurns();
  #isPaused = false;
  #isPausedByLoss = false; // of the microphone, and not by the user or a hidden page
  /** @type {ReturnType<typeof setInterval> | undefined} */ #finishTimer;
  #delayMs = 0;
  /** Sends the picture that the user chose last. @type {(() => void) | null} */ #showChosen = null;

  constructor(/** @type {DuplexCall} */ call, /** @type {DuplexCallOptions} */ options) {
    this.#call = call;
    this.#options = options;
    const { settings } = options;
    this.sessionOptions = { getMaxKvTokens: () => settings().maxKvTokens, isAutoPauseOn: () => settings().isAutoPauseOn };
  }

  get delayMs() {
    return this.#call.player?.metrics.targetDelayMs ?? this.#options.settings().playbackDelayMs;
  }

  applySettings() {
    const { playbackDelayMs } = this.#options.settings();
    if (playbackDelayMs !== this.#delayMs) this.#call.player?.setDelay(playbackDelayMs);
    this.#delayMs = playbackDelayMs;
    this.#enableBargeIn();
  }

  /** A second detector that has to agree before the user counts as speaking. @param {VoiceDetector | null} detector */
  setDetector(detector) {
    this.#detector = detector;
    this.#bargeIn?.setDetector(detector);
  }

  /** Sends a chosen picture, after a pause if there is one: the file chooser of a phone may hide the page.
   * @param {string} base64 @param {() => void} onSent
   */
  showPicture(base64, onSent) {
    this.#showChosen = () => this.#call.session?.sendPicture(base64) && onSent();
    this.onState(this.#call.state);
  }

  onState(/** @type {SessionState} */ { phase, isLost }) {
    const show = phase === "running" && !isLost ? this.#showChosen : null;
    if (show) this.#showChosen = null;
    show?.();
    const isPaused = phase === "pausing" || phase === "paused";
    if (isPaused === this.#isPaused) return;
    this.#isPaused = isPaused;
    if (!isPaused) this.#isPausedByLoss = false;
    isPaused ? this.#call.source?.pause?.() : this.#call.source?.resume?.();
    this.#enableBargeIn();
  }

  flush() {
    this.#bargeIn?.flush();
  }

  onStart() {
    this.#showChosen = null;
    this.userTurns.clear();
  }

  onMuted(/** @type {boolean} */ isMuted) {
    if (isMuted) this.userTurns.end();
    this.#enableBargeIn();
  }

  async onPlayer(/** @type {AudioPlayer} */ player) {
    this.#delayMs = this.#options.settings().playbackDelayMs;
    const bargeIn = await this.#options.parts.openBargeIn(player);
    if (this.#call.player !== player) return; // the call ended or began again meanwhile
    this.#bargeIn = bargeIn;
    bargeIn.setDetector(this.#detector);
    bargeIn.addEventListener("interrupt", () => this.#call.interrupt());
    bargeIn.addEventListener("state", () => this.#call.setDevices({ isHeld: bargeIn.state === "held" }));
    player.on("metrics", (report) => this.#call.session?.notePlayback(report));
    player.on("gap", (gap) => this.#call.session?.noteGap(gap));
  }

  onSource(/** @type {LiveSource} */ source) {
    this.#bargeIn?.attach(source);
    this.#enableBargeIn();
  }

  onSourceLost(/** @type {boolean} */ isLost) {
    const { session, state } = this.#call;
    if (isLost) {
      this.#isPausedByLoss ||= state.phase === "running" || state.isResuming || state.isAutoPaused;
      session?.pause();
    } else if (this.#isPausedByLoss) session?.resume({ isAuto: true });
  }

  #enableBargeIn() {
    // A paused source could never release a held answer.
    const isDeaf = this.#call.devices.isMuted || (this.#isPaused && this.#call.source?.pause !== undefined);
    this.#bargeIn?.setEnabled(this.#options.settings().isBargeInOn && !isDeaf);
  }

  onLevel(/** @type {number} */ rms) {
    if (this.#call.state.phase !== "running" || this.#call.devices.isMuted) return;
    const { version } = this.userTurns;
    this.userTurns.push(rms, performance.now());
    if (this.userTurns.version !== version) this.#call.emit("heard", null);
  }

  send(/** @type {Float32Array} */ audio) {
    if (this.#call.devices.isMuted) audio.fill(0);
    const outcome = this.#call.session?.sendChunk({ audio, maxSliceNums: this.#options.maxSliceNums?.() });
    return outcome !== undefined && outcome !== "not_running";
  }

  /** Ends the call once the model has finished speaking. */
  onFileOver() {
    clearInterval(this.#finishTimer);
    let [quietPolls, lastReceived] = [0, 0];
    this.#finishTimer = setInterval(() => {
      const { chunksSent, chunksReceived, chunksServerDropped, isLost, phase } = this.#call.state;
      const isQuiet = chunksReceived === lastReceived && phase === "running" && !isLost;
      [quietPolls, lastReceived] = [isQuiet ? quietPolls + 1 : 0, chunksReceived];
      const isAnswered = chunksReceived + chunksServerDropped >= chunksSent || quietPolls >= FINISH_QUIET_POLLS;
      if (isAnswered && !this.#call.player?.isPlaying) this.#call.stop();
    }, FINISH_POLL_MS);
  }

  onClosing() {
    clearInterval(this.#finishTimer);
    this.userTurns.end();
    this.#bargeIn?.close();
    this.#bargeIn = null;
  }
}
