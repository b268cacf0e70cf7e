/**
 * A call of either kind: microphone or file → session → playback, with device changes and orderly
 * shutdown. Pure.
 */

import { Emitter } from "../../shared/async.js";
import { DEVICE_CODES, problemOfDevice, problemOfEnd, warningOf } from "./call-state.js";

/** @import { EndReason } from "../../shared/server-messages.js" */
/** @import { BargeIn } from "./barge-in.js" */
/** @import { WakeLock } from "../../shared/page-visibility.js" */
/** @import { AudioPlayer } from "./audio-player.js" */
/** @import { DuplexSession } from "./duplex-session.js" */
/** @import { CallEvents, CallOptions, DeviceState, LiveSource, SessionEvents } from "../../../types/duplex.js" */
/** @import { HalfDuplexSession } from "./half-duplex-session.js" */

/**
 * Browser services of a call, implemented in `call-parts.js`.
 * @template Session
 * @typedef {Object} CallParts
 * @property {(options: {delayMs: number}) => Promise<AudioPlayer>} openPlayer
 * @property {(player: AudioPlayer) => Promise<BargeIn>} openBargeIn
 * @property {(options: object) => Promise<Session>} openSession
 * @property {() => WakeLock} keepAwake
 * @property {(listener: () => void) => void} onDeviceChange a device was plugged in or out
 */

/**
 * Strategy of full or half duplex.
 * @template {DuplexSession | HalfDuplexSession} Session
 * @typedef {Object} CallKind
 * @property {() => Session["state"]} initialState
 * @property {object} sessionOptions
 * @property {(audio: Float32Array) => boolean} send returns whether the chunk was sent
 * @property {() => void} [flush] drops audio that was not played yet; default: `player.flush`
 * @property {() => void} [applySettings]
 * @property {() => void} [onStart] the devices are open, the session is about to start
 * @property {(isMuted: boolean) => void} [onMuted]
 * @property {(state: Session["state"]) => void} [onState]
 * @property {(player: AudioPlayer) => Promise<void>} [onPlayer]
 * @property {(source: LiveSource) => void} [onSource]
 * @property {(isLost: boolean) => void} [onSourceLost] lost, or back again
 * @property {(rms: number) => void} [onLevel] of the source
 * @property {() => void} [onFileOver]
 * @property {() => void} [onClosing] the devices are about to be closed
 */

/**
 * @template {DuplexSession | HalfDuplexSession} Session
 * @template {CallKind<Session>} Kind
 * @extends {Emitter<CallEvents<Session["state"]>>}
 */
export class Call extends Emitter {
  /** @type {Session | null} comes with the first call */ session = null;
  /** @type {AudioPlayer | null} */ player = null;
  /** @type {LiveSource | null} */ source = null;
  #options;
  /** @type {DeviceState} */ devices = { isStarting: false, isMuted: false, canMute: false, isHeld: false };
  /** @type {AbortController | null} ends the listeners of the source now open */ #sourceEnd = null;
  /** @type {WakeLock | null} */ #wakeLock = null;
  #inputRms = 0;
  #round = 0; // incremented at each start and end, so that devices that open too late are closed again
  #wasQueued = false;
  #isReopening = false;
  /** @type {number | null} round whose source is to be opened again */ #reopenRound = null;
  #isSourceLost = false;
  /** @type {(() => Promise<void>)[]} */ #closers = [];
  /** @type {Promise<unknown>} until the last call's devices are closed */ #closing = Promise.resolve();

  constructor(/** @type {CallOptions<Session>} */ options, /** @type {(call: Call<Session, Kind>) => Kind} */ createKind) {
    super();
    this.#options = options;
    this.kind = createKind(this);
    options.parts.onDeviceChange(() => {
      if (this.#isSourceLost) this.#reopen().catch(() => undefined); // still missing: already reported
    });
  }

  /** @returns {Session["state"]} */
  get state() {
    return this.session?.state ?? this.kind.initialState();
  }

  /** From the click on start until everything is closed. */
  get isActive() {
    return this.devices.isStarting || (this.session?.isActive ?? false);
  }

  levels() {
    return { inputRms: this.devices.isMuted ? 0 : this.#inputRms, outputRms: this.player?.outputRms() ?? 0 };
  }

  /**
   * Opens the devices, then the session. To be called in a user gesture.
   * @param {Parameters<Session["start"]>[0]} given
   * @returns {Promise<boolean>} false: a device refused and `problem` said why, or the start was cancelled
   */
  async start(given) {
    if (this.isActive) return false;
    this.#isSourceLost = false;
    const round = ++this.#round;
    this.setDevices({ isStarting: true, isMuted: false, isHeld: false });
    try {
      await this.#closing;
      this.session ??= await this.#makeSession();
      await this.#openPlayer(round);
      await this.#openSource(round);
    } catch (error) {
      if (round === this.#round) {
        await this.#closeDevices();
        this.emit("problem", problemOfDevice(error, false));
      }
      return false;
    } finally {
      if (round === this.#round) this.setDevices({ isStarting: false });
    }
    if (round !== this.#round) return false;
    this.kind.onStart?.();
    this.session?.start(/** @type {any} */ (given)); // `any`: each kind of session has its own
    return true;
  }

  stop() {
    if (this.session?.isActive) return this.session.stop();
    this.#round += 1;
    this.setDevices({ isStarting: false });
    void this.#closeDevices();
  }

  interrupt() {
    this.session?.interrupt();
  }

  setMuted(/** @type {boolean} */ isMuted) {
    this.setDevices({ isMuted });
    this.kind.onMuted?.(isMuted);
  }

  /** Applies settings that may change during a call. */
  applySettings() {
    this.kind.applySettings?.();
    const { speakerId } = this.#options.settings();
    void this.player?.setSinkId(speakerId).catch(() => this.emit("problem", warningOf("sink_refused")));
  }

  /** Reopens the microphone, for another device, other echo settings, or one that was plugged in again. */
  async reopenSource() {
    try {
      await this.#reopen();
    } catch (error) {
      this.emit("problem", problemOfDevice(error, true));
    }
  }

  /** Registers a callback that runs at the end of each call, before the devices are closed. @param {() => Promise<void>} run */
  beforeClose(run) {
    this.#closers.push(run);
  }

  async #makeSession() {
    const isDrained = () => !this.player?.isPlaying;
    const session = await this.#options.parts.openSession({ ...this.kind.sessionOptions, isDrained });
    // Both kinds of session have these events, but TypeScript cannot call `on` of a union.
    const on = /** @type {Emitter<SessionEvents<Session["state"]>>} */ (session);
    on.on("state", (state) => {
      if (state.phase === "queued") this.#wasQueued = true;
      this.kind.onState?.(state);
      this.emit("state", state);
    });
    on.on("queuedone", () => {
      if (this.#wasQueued) this.emit("assigned", null);
      this.#wasQueued = false;
    });
    on.on("prepared", () => {
      this.source?.start();
      this.#wakeLock ??= this.#options.parts.keepAwake();
      this.#awaitSound();
      if (this.#isSourceLost) this.kind.onSourceLost?.(true); // in the queue, where there was nothing to pause
      this.emit("prepared", null);
    });
    on.on("speak", ({ audioBase64, isTurnStart, turnId }) => {
      if (isTurnStart) this.player?.beginTurn(turnId);
      if (audioBase64) this.player?.playChunk(audioBase64);
    });
    on.on("turnend", () => this.player?.endTurn());
    on.on("flush", () => (this.kind.flush ? this.kind.flush() : this.player?.flush()));
    on.on("warning", (warning) => this.emit("warning", warning));
    on.on("ended", (end) => void this.#onEnded(end));
    return session;
  }

  /** Without a gesture the browser may not have let the player start. */
  #awaitSound() {
    const { player } = this;
    if (!player || player.isRunning) return;
    this.#reportProblem("sound_suspended");
    player.addEventListener("resumed", () => player.skipToNow(), { once: true }); // the rest would be played late
  }

  async #onEnded(/** @type {{reason: EndReason, state: Session["state"]}} */ end) {
    this.#round += 1;
    await this.#closeDevices();
    const problem = problemOfEnd(end.reason);
    if (problem) this.emit("problem", problem);
    this.emit("ended", end);
  }

  async #openPlayer(/** @type {number} */ round) {
    if (round !== this.#round) return;
    const { playbackDelayMs: delayMs, speakerId } = this.#options.settings();
    const player = await this.#options.parts.openPlayer({ delayMs });
    if (round !== this.#round) return; // cancelled meanwhile
    this.player = player;
    await player.init();
    if (speakerId) await player.setSinkId(speakerId).catch(() => undefined); // unavailable: the default one is used
    await this.kind.onPlayer?.(player);
    player.addEventListener("suspended", () => this.#reportProblem("sound_suspended"));
    player.addEventListener("resumed", () => this.emit("solved", { code: "sound_suspended" }));
  }

  async #openSource(/** @type {number} */ round) {
    if (round !== this.#round) return;
    const source = await this.#options.openSource(this.source);
    const player = this.player;
    if (round !== this.#round || !player) return source.close(); // the call may have ended meanwhile
    player.resume(); // Safari lets a page play while it records
    const before = this.source;
    if (source === before) return; // a file that goes on with another microphone
    this.#sourceEnd?.abort();
    this.source = source;
    this.#listenToSource(source);
    this.kind.onSource?.(source);
    this.setDevices({ canMute: source.isMicrophone !== false });
    this.emit("opened", { player, source });
    await before?.close();
  }

  #listenToSource(/** @type {LiveSource} */ source) {
    this.#sourceEnd = new AbortController();
    const { signal } = this.#sourceEnd;
    /** @param {string} type @param {(detail: any) => void} listener `any`: each event has its own detail */
    const on = (type, listener) =>
      source.addEventListener(type, (event) => listener(/** @type {CustomEvent} */ (event).detail), { signal });
    on("chunk", ({ audio }) => {
      if (this.kind.send(audio)) this.emit("chunk", { audio });
      queueMicrotask(() => source.recycle?.(audio)); // after the other listeners of the event
    });
    on("level", ({ rms }) => {
      this.#inputRms = rms;
      this.kind.onLevel?.(rms);
    });
    on("silent", () => this.#reportProblem("silent_microphone"));
    on("audible", () => this.emit("solved", { code: "silent_microphone" }));
    on("suspended", () => this.#reportProblem("sound_suspended"));
    on("resumed", () => this.emit("solved", { code: "sound_suspended" }));
    on("ended", (error) => this.#onSourceEnded(error));
  }

  /** @param {unknown} error null: a file has ended */
  #onSourceEnded(error) {
    this.#inputRms = 0;
    if (error === null) return this.kind.onFileOver?.();
    this.#isSourceLost = true;
    this.kind.onSourceLost?.(true);
    this.emit("problem", problemOfDevice(error, true));
  }

  async #reopen() {
    if (!this.isActive || this.devices.isStarting) return;
    this.#reopenRound = this.#round; // another microphone may be chosen, or appear, while one is being opened
    if (this.#isReopening) return;
    this.#isReopening = true;
    try {
      while (this.#reopenRound !== null) {
        const round = this.#reopenRound;
        this.#reopenRound = null;
        await this.#openSource(round).catch((error) => this.#reopenRound ?? Promise.reject(error));
      }
    } finally {
      this.#isReopening = false;
    }
    for (const code of DEVICE_CODES) this.emit("solved", { code });
    if (this.state.preparedAtMs !== null) this.source?.start();
    if (this.#isSourceLost) this.kind.onSourceLost?.(false);
    this.#isSourceLost = false;
  }

  #reportProblem(/** @type {string} */ code) {
    if (this.session?.isActive) this.emit("problem", warningOf(code));
  }

  #closeDevices() {
    return (this.#closing = Promise.all([this.#closing, this.#closeNow()]));
  }

  async #closeNow() {
    this.kind.onClosing?.();
    await Promise.allSettled(this.#closers.map((run) => run()));
    const { source, player } = this;
    this.source = null;
    this.player = null;
    this.#inputRms = 0;
    this.#sourceEnd?.abort();
    void this.#wakeLock?.release();
    this.#wakeLock = null;
    this.setDevices({ canMute: false, isHeld: false });
    await Promise.allSettled([source?.close(), player?.stop()]);
  }

  setDevices(/** @type {Partial<DeviceState>} */ change) {
    this.devices = { ...this.devices, ...change };
    this.emit("devices", this.devices);
  }
}
