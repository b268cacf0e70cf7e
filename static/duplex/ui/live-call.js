// @ts-check
/**
 * A live call: microphone or file → session → loudspeaker, with barge-in, pause, mute, change of
 * devices and a tidy end. Device: no DOM; pages show what its events tell.
 */

import { Emitter } from "../../shared/emitter.js";
import { late } from "../../shared/late.js";
import { pageVisibility } from "../../shared/page-visibility.js";
import { loadCallSound } from "../lib/late-sound.js";
import { DEVICE_CODES, warningOf, problemOfDevice, problemOfEnd } from "../lib/live-problems.js";
import { initialState } from "../lib/session-state.js";
import { UserTurns } from "../lib/user-turns.js";
import { keepAwake } from "../lib/wake-lock.js";

/**
 * @typedef {import("../lib/audio-player.js").AudioPlayer} AudioPlayer
 * @typedef {import("../lib/duplex-session.js").DuplexSession} DuplexSession
 * @typedef {import("../lib/session-state.js").SessionState} SessionState
 * @typedef {import("../lib/duplex-types.js").DuplexStart} DuplexStart
 * @typedef {import("./live-types.js").LiveSource} LiveSource
 * @typedef {import("./live-types.js").LiveCallOptions} LiveCallOptions
 * @typedef {import("./live-types.js").LiveCallEvents} LiveCallEvents
 * @typedef {import("./live-types.js").DeviceState} DeviceState
 */

const FINISH_POLL_MS = 100;
const NOT_BEGUN = initialState();

const loadSession = late(() => import("../lib/duplex-session.js"));
/** What the first call needs to begin; a page may have it come earlier. */
export const loadCall = () => Promise.all([loadSession(), loadCallSound()]);

/** @extends {Emitter<LiveCallEvents>} */
export class LiveCall extends Emitter {
  #options;
  /** @type {DuplexSession | null} comes with the first call */
  #session = null;
  /** @type {AudioPlayer | null} */
  #player = null;
  /** @type {import("../lib/barge-in.js").BargeIn | null} */
  #bargeIn = null;
  /** @type {LiveSource | null} */
  #source = null;
  /** @type {AbortController | null} ends the listeners of the source now open */
  #sourceEnd = null;
  /** @type {import("../lib/wake-lock.js").WakeLock | null} */
  #wakeLock = null;
  #inputRms = 0;
  /** @type {import("../lib/barge-in.js").VoiceDetector | null} */
  #detector = null;
  /** @type {DeviceState} */
  #devices = { isStarting: false, isMuted: false, canMute: false, isHeld: false };
  /** @type {DuplexStart | null} */
  #given = null;
  #userTurns = new UserTurns();
  #wasQueued = false;
  #isPaused = false;
  #isReopening = false;
  #isSourceLost = false;
  /** @type {(() => Promise<void>)[]} */
  #closers = [];
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #finishTimer;
  #delayMs = 0;

  /** @param {LiveCallOptions} options */
  constructor(options) {
    super();
    this.#options = options;
    navigator.mediaDevices?.addEventListener("devicechange", this.#onDeviceChange);
  }

  get state() {
    return this.#session?.state ?? NOT_BEGUN;
  }

  get devices() {
    return this.#devices;
  }

  get isActive() {
    return this.#devices.isStarting || (this.#session?.isActive ?? false);
  }

  get userTurns() {
    return this.#userTurns;
  }

  /** Playback delay aimed at, ms. */
  get delayMs() {
    return this.#player?.metrics.targetDelayMs ?? this.#options.settings().playbackDelayMs;
  }

  /** What is heard and what is said now. */
  levels() {
    const inputRms = this.#devices.isMuted ? 0 : this.#inputRms;
    return { inputRms, outputRms: this.#player?.outputRms() ?? 0 };
  }

  /**
   * Open the devices, then the session. Call it in a click.
   * @param {DuplexStart} given
   * @returns {Promise<boolean>} false: a device refused; `problem` said why
   */
  async start(given) {
    if (this.isActive) return false;
    this.#given = given;
    this.#userTurns.clear();
    this.#isSourceLost = false;
    this.#setDevices({ isStarting: true, isMuted: false, isHeld: false });
    try {
      await loadCall();
      this.#session ??= await this.#makeSession();
      await this.#openPlayer();
      await this.#openSource();
    } catch (error) {
      await this.#closeDevices();
      this.emit("problem", problemOfDevice(error, false));
      return false;
    } finally {
      this.#setDevices({ isStarting: false });
    }
    this.#session.start(given);
    return true;
  }

  /** Start again with the same settings. */
  async restart() {
    return this.#given ? this.start(this.#given) : false;
  }

  stop() {
    this.#session?.stop();
  }

  pauseToggle() {
    this.#session?.pauseToggle();
  }

  interrupt() {
    this.#session?.interrupt();
  }

  /** @param {string} text typed @returns {boolean} whether it went out */
  sendText(text) {
    return this.#session?.sendText(text) ?? false;
  }

  toggleForceListen() {
    this.#session?.setForceListen(!this.state.isForceListen);
  }

  /** @param {boolean} isMuted */
  setMuted(isMuted) {
    if (isMuted) this.#userTurns.end();
    this.#setDevices({ isMuted });
    this.#enableBargeIn();
  }

  /** Settings changed: take over what may change in the middle of a call. */
  applySettings() {
    const { playbackDelayMs, speakerId } = this.#options.settings();
    if (playbackDelayMs !== this.#delayMs) this.#player?.setDelay(playbackDelayMs);
    this.#delayMs = playbackDelayMs;
    this.#enableBargeIn();
    void this.#player?.setSinkId(speakerId).catch((error) => this.emit("problem", problemOfDevice(error, true)));
  }

  /** Ask a voice detector as well before the user counts as speaking. @param {import("../lib/barge-in.js").VoiceDetector | null} detector */
  setDetector(detector) {
    this.#detector = detector;
    this.#bargeIn?.setDetector(detector);
  }

  /** Open the microphone anew, for another device or other echo settings, or one plugged in again. */
  async reopenSource() {
    try {
      await this.#reopen();
    } catch (error) {
      this.emit("problem", problemOfDevice(error, true));
    }
  }

  async #reopen() {
    if (!this.isActive || this.#devices.isStarting || this.#isReopening) return;
    this.#isReopening = true;
    try {
      await this.#openSource();
    } finally {
      this.#isReopening = false;
    }
    for (const code of DEVICE_CODES) this.emit("solved", { code });
    if (this.state.preparedAtMs !== null) this.#source?.start();
    if (this.#isSourceLost) this.#session?.resume();
    this.#isSourceLost = false;
  }

  /** @type {() => void} Something was plugged in: perhaps what was lost. */
  #onDeviceChange = () => {
    if (this.#isSourceLost) this.#reopen().catch(() => undefined); // not yet: already reported
  };

  /** End at once; the object is of no use afterwards. */
  close() {
    navigator.mediaDevices?.removeEventListener("devicechange", this.#onDeviceChange);
    this.#session?.close();
    void this.#closeDevices();
  }

  async #makeSession() {
    const { DuplexSession } = await loadSession();
    const { settings, idPrefix, session: given } = this.#options;
    const session = new DuplexSession({
      visibility: pageVisibility(),
      ...given,
      idPrefix,
      getMaxKvTokens: () => settings().maxKvTokens,
      isAutoPauseOn: () => settings().isAutoPauseOn,
      isDrained: () => !this.#player?.isPlaying,
    });
    session.on("state", (state) => this.#onState(state));
    session.on("queuedone", () => this.#onAssigned());
    session.on("prepared", () => this.#onPrepared());
    session.on("speak", (speech) => this.#play(speech));
    session.on("turnend", () => this.#player?.endTurn());
    session.on("flush", () => this.#bargeIn?.flush());
    session.on("warning", (warning) => this.emit("warning", warning));
    session.on("ended", (end) => void this.#onEnded(end));
    return session;
  }

  /** @param {SessionState} state */
  #onState(state) {
    if (state.phase === "queued") this.#wasQueued = true;
    const isPaused = state.phase === "pausing" || state.phase === "paused";
    if (isPaused !== this.#isPaused) {
      this.#isPaused = isPaused;
      isPaused ? this.#source?.pause?.() : this.#source?.resume?.();
      this.#enableBargeIn();
    }
    this.emit("state", state);
  }

  #onAssigned() {
    if (this.#wasQueued) this.emit("assigned", null);
    this.#wasQueued = false;
  }

  #onPrepared() {
    this.#source?.start();
    this.emit("prepared", null);
    this.#wakeLock ??= keepAwake();
  }

  /** @param {import("../lib/duplex-types.js").SpeakEvent} speech */
  #play({ audioBase64, isTurnStart, turnId }) {
    if (isTurnStart) this.#player?.beginTurn(turnId);
    if (audioBase64) this.#player?.playChunk(audioBase64);
  }

  /** @param {{reason: import("../../shared/end-reasons.js").EndReason, state: SessionState}} end */
  async #onEnded(end) {
    this.#userTurns.end();
    await this.#closeDevices();
    const problem = problemOfEnd(end.reason);
    if (problem) this.emit("problem", problem);
    this.emit("ended", end);
  }

  async #openPlayer() {
    const { AudioPlayer, BargeIn } = await loadCallSound();
    const { playbackDelayMs, speakerId } = this.#options.settings();
    this.#delayMs = playbackDelayMs;
    const player = new AudioPlayer({ delayMs: playbackDelayMs });
    this.#player = player;
    await player.init();
    if (speakerId) await player.setSinkId(speakerId).catch(() => undefined); // gone: the default one plays
    this.#bargeIn = new BargeIn(player);
    this.#bargeIn.setDetector(this.#detector);
    this.#bargeIn.addEventListener("interrupt", () => this.#session?.interrupt());
    this.#bargeIn.addEventListener("state", () => this.#setDevices({ isHeld: this.#bargeIn?.state === "held" }));
    /** @param {string} type @param {(detail: any) => void} listener `any`: each event has its own detail */
    const on = (type, listener) =>
      player.addEventListener(type, (event) => listener(/** @type {CustomEvent} */ (event).detail));
    on("metrics", (report) => this.#session?.notePlayback(report));
    on("gap", (gap) => this.#session?.noteGap(gap));
    on("suspended", () => this.#reportProblem("sound_suspended"));
    on("resumed", () => this.emit("solved", { code: "sound_suspended" }));
  }

  async #openSource() {
    const source = await this.#options.openSource();
    const isWanted = this.#player !== null; // the call may have ended meanwhile
    const before = this.#source;
    this.#sourceEnd?.abort();
    if (before) await before.close();
    if (!isWanted) return source.close();
    this.#source = source;
    this.#listenToSource(source);
    this.#bargeIn?.attach(source);
    this.#enableBargeIn();
    this.#setDevices({ canMute: source.isMicrophone !== false });
    const sendPicture = (/** @type {string} */ base64) => this.#session?.sendPicture(base64) ?? false;
    this.emit("opened", { player: /** @type {AudioPlayer} */ (this.#player), source, sendPicture });
  }

  /** @param {LiveSource} source */
  #listenToSource(source) {
    this.#sourceEnd = new AbortController();
    const { signal } = this.#sourceEnd;
    /** @param {string} type @param {(detail: any) => void} listener `any`: each event has its own detail */
    const on = (type, listener) =>
      source.addEventListener(type, (event) => listener(/** @type {CustomEvent} */ (event).detail), { signal });
    on("chunk", ({ audio }) => this.#send(audio));
    on("level", ({ rms }) => this.#onLevel(rms));
    on("silent", () => this.#reportProblem("silent_microphone"));
    on("audible", () => this.emit("solved", { code: "silent_microphone" }));
    on("suspended", () => this.#reportProblem("sound_suspended"));
    on("resumed", () => this.emit("solved", { code: "sound_suspended" }));
    on("ended", (error) => this.#onSourceEnded(error));
  }

  #enableBargeIn() {
    // A source that stands still could never let go of an answer that is held.
    const isDeaf = this.#devices.isMuted || (this.#isPaused && this.#source?.pause !== undefined);
    this.#bargeIn?.setEnabled(this.#options.settings().isBargeInOn && !isDeaf);
  }

  /** @param {number} rms */
  #onLevel(rms) {
    this.#inputRms = rms;
    const isHeard = this.state.phase === "running" && !this.#devices.isMuted;
    if (!isHeard) return;
    const { version } = this.#userTurns;
    this.#userTurns.push(rms, performance.now());
    if (this.#userTurns.version !== version) this.emit("heard", null);
  }

  /** @param {Float32Array} audio */
  #send(audio) {
    if (this.#devices.isMuted) audio.fill(0);
    const source = this.#source;
    const outcome = this.#session?.sendChunk({ audio, maxSliceNums: this.#options.maxSliceNums?.() });
    if (outcome && outcome !== "not_running") this.emit("chunk", { audio });
    queueMicrotask(() => source?.recycle?.(audio)); // other listeners of the event still need it
  }

  /** @param {unknown} error null: a file is over */
  #onSourceEnded(error) {
    this.#inputRms = 0;
    if (error === null) return this.#finish();
    this.#isSourceLost = true;
    this.#session?.pause();
    this.emit("problem", problemOfDevice(error, true));
  }

  /** A file is over: let the model finish what it says, then end. */
  #finish() {
    this.emit("sourceended", null);
    clearInterval(this.#finishTimer);
    this.#finishTimer = setInterval(() => {
      const { chunksSent, chunksReceived, chunksServerDropped } = this.state;
      const isAnswered = chunksReceived + chunksServerDropped >= chunksSent;
      if (isAnswered && !this.#player?.isPlaying) this.stop();
    }, FINISH_POLL_MS);
  }

  /** @param {string} code */
  #reportProblem(code) {
    if (this.#session?.isActive) this.emit("problem", warningOf(code));
  }

  /** Run something at the end of each call while the devices are still open. @param {() => Promise<void>} run */
  beforeClose(run) {
    this.#closers.push(run);
  }

  async #closeDevices() {
    clearInterval(this.#finishTimer);
    await Promise.allSettled(this.#closers.map((run) => run()));
    const [source, player, bargeIn] = [this.#source, this.#player, this.#bargeIn];
    this.#source = null;
    this.#player = null;
    this.#bargeIn = null;
    this.#inputRms = 0;
    this.#sourceEnd?.abort();
    bargeIn?.close();
    void this.#wakeLock?.release();
    this.#wakeLock = null;
    this.#setDevices({ canMute: false, isHeld: false });
    await Promise.allSettled([source?.close(), player?.stop()]);
  }

  /** @param {Partial<DeviceState>} change */
  #setDevices(change) {
    this.#devices = { ...this.#devices, ...change };
    this.emit("devices", this.#devices);
  }
}
