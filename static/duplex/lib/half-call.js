// @ts-check
/**
 * A half-duplex call: microphone → session → loudspeaker, with mute, change of devices and a tidy end.
 * Device: no DOM; the page shows what its events tell.
 */

import { Emitter } from "../../shared/emitter.js";
import { pageVisibility } from "../../shared/page-visibility.js";
import { HalfDuplexSession } from "./half-duplex-session.js";
import { loadCallSound } from "./late-sound.js";
import { warningOf, problemOfDevice, problemOfEnd } from "./live-problems.js";
import { keepAwake } from "./wake-lock.js";

/** @typedef {import("./audio-player.js").AudioPlayer} AudioPlayer */
/** @typedef {import("./half-duplex-state.js").HalfState} HalfState */
/** @typedef {import("./half-duplex-session.js").HalfDuplexStart} HalfDuplexStart */
/** @typedef {import("./half-duplex-session.js").HalfDuplexOptions} HalfDuplexOptions */
/** @typedef {import("./half-duplex-session.js").HalfSpeakEvent} HalfSpeakEvent */
/** @typedef {import("./live-problems.js").LiveProblem} LiveProblem */
/** @typedef {import("./microphone.js").Microphone} Microphone */

/** Half a second at 16 kHz. Source: docs/specification/service.md#7.6. */
const CHUNK_SAMPLES = 8_000;
const DEFAULT_DELAY_MS = 200;

/**
 * @typedef {Object} HalfCallOptions
 * @property {() => {micId: string, speakerId: string}} devices "" is the system's own choice
 * @property {() => number} [playbackDelayMs]
 * @property {HalfDuplexOptions} [session]
 * @property {typeof import("./microphone.js").openMicrophone} [openMic] for tests
 * @property {() => import("./wake-lock.js").WakeLock} [awaken] for tests
 * @property {(options: import("./audio-player.js").PlayerOptions) => AudioPlayer | Promise<AudioPlayer>} [makePlayer] for tests
 *
 * @typedef {{isStarting: boolean, isMuted: boolean}} HalfDevices
 *
 * @typedef {Object} HalfCallEvents
 * @property {HalfState} state
 * @property {HalfDevices} devices
 * @property {{rms: number}} level of the microphone, 20 times a second
 * @property {LiveProblem} problem stays until `solved` with its code, or a new start
 * @property {{code: string}} solved
 * @property {null} assigned it waits in line no more
 * @property {null} prepared it begins
 * @property {null} opened the devices are open, their names can be read
 * @property {{reason: import("../../shared/end-reasons.js").EndReason, state: HalfState}} ended all is closed
 */

/** @extends {Emitter<HalfCallEvents>} */
export class HalfCall extends Emitter {
  #options;
  #session;
  /** @type {AudioPlayer | null} */
  #player = null;
  /** @type {Microphone | null} */
  #microphone = null;
  /** @type {import("./wake-lock.js").WakeLock | null} */
  #wakeLock = null;
  /** @type {AbortController | null} ends the listeners of the microphone now open */
  #micEnd = null;
  #inputRms = 0;
  /** Grows with each start and end, so that what was opened too late is closed again. */
  #round = 0;
  /** @type {HalfDevices} */
  #devices = { isStarting: false, isMuted: false };
  /** @type {HalfDuplexStart | null} */
  #given = null;

  /** @param {HalfCallOptions} options */
  constructor(options) {
    super();
    /** @type {HalfCallOptions & Required<Pick<HalfCallOptions, "playbackDelayMs" | "openMic" | "awaken" | "makePlayer">>} */
    this.#options = {
      playbackDelayMs: () => DEFAULT_DELAY_MS,
      openMic: async (given) => (await loadCallSound()).openMicrophone(given),
      awaken: () => keepAwake(),
      makePlayer: async (given) => new (await loadCallSound()).AudioPlayer(given),
      ...options,
    };
    this.#session = new HalfDuplexSession({
      ...(options.session?.visibility ? {} : { visibility: pageVisibility() }),
      ...options.session,
      isDrained: () => !this.#player?.isPlaying,
    });
    this.#listenToSession();
  }

  get state() {
    return this.#session.state;
  }

  get devices() {
    return this.#devices;
  }

  /** From the click on start until everything is closed. */
  get isActive() {
    return this.#session.isActive || this.#devices.isStarting;
  }

  /** Seconds left before the server ends the session; null unless it runs. */
  get remainingS() {
    return this.#session.remainingS;
  }

  /** What is heard and what is said now. */
  levels() {
    return { inputRms: this.#devices.isMuted ? 0 : this.#inputRms, outputRms: this.#player?.outputRms() ?? 0 };
  }

  /**
   * Open the devices, then the session. Call it in a click.
   * @param {HalfDuplexStart} given
   * @returns {Promise<boolean>} false: a device refused and `problem` said why, or it was given up
   */
  async start(given) {
    if (this.isActive) return false;
    this.#given = given;
    const round = ++this.#round;
    this.#setDevices({ isStarting: true, isMuted: false });
    try {
      await this.#openPlayer(round);
      await this.#openMicrophone(round);
    } catch (error) {
      await this.#closeDevices();
      if (round === this.#round) this.emit("problem", problemOfDevice(error, false));
      return false;
    } finally {
      this.#setDevices({ isStarting: false });
    }
    if (round !== this.#round) return false;
    this.#session.setMicMuted(false);
    this.#session.start(given);
    return true;
  }

  /** Start again with the same settings. */
  async restart() {
    return this.#given ? this.start(this.#given) : false;
  }

  /** End it, or give up starting. */
  stop() {
    if (this.#session.isActive) return this.#session.stop();
    this.#round += 1;
    void this.#closeDevices();
  }

  /** Stop the answer; the call goes on. */
  interrupt() {
    this.#session.interrupt();
  }

  /** @param {boolean} isMuted */
  setMuted(isMuted) {
    this.#session.setMicMuted(isMuted);
    this.#setDevices({ isMuted });
  }

  /** Open the microphone anew: another one was chosen, or it is plugged in again. */
  async reopenMicrophone() {
    if (!this.#session.isActive) return;
    try {
      await this.#openMicrophone(this.#round);
      this.emit("solved", { code: "unplugged" });
      if (this.state.preparedAtMs !== null) this.#microphone?.start();
    } catch (error) {
      this.emit("problem", problemOfDevice(error, true));
    }
  }

  /** Play through the chosen speaker from now on. */
  async changeSpeaker() {
    const isChanged = await this.#player?.setSinkId(this.#options.devices().speakerId).catch(() => false);
    if (isChanged === false) this.emit("problem", { ...warningOf("sink_refused"), kind: "caution" });
  }

  /** End at once; the object is of no use afterwards. */
  close() {
    this.#round += 1;
    this.#session.close();
    void this.#closeDevices();
  }

  #listenToSession() {
    const session = this.#session;
    session.on("state", (state) => this.emit("state", state));
    session.on("prepared", () => {
      this.#microphone?.start();
      this.#wakeLock = this.#options.awaken();
      this.emit("prepared", null);
    });
    session.on("queuedone", () => this.emit("assigned", null));
    session.on("speak", (speech) => this.#play(speech));
    session.on("turnend", () => this.#player?.endTurn());
    session.on("flush", () => this.#player?.flush());
    session.on("warning", ({ code, message }) => this.emit("problem", { ...warningOf(code), message, kind: "caution" }));
    session.on("ended", (end) => void this.#onEnded(end));
  }

  /** @param {HalfSpeakEvent} speech */
  #play({ audioBase64, isTurnStart, turnIndex }) {
    if (isTurnStart) this.#player?.beginTurn(turnIndex);
    if (audioBase64) this.#player?.playChunk(audioBase64);
  }

  /** @param {{reason: import("../../shared/end-reasons.js").EndReason, state: HalfState}} end */
  async #onEnded(end) {
    this.#round += 1;
    await this.#closeDevices();
    const problem = problemOfEnd(end.reason);
    if (problem) this.emit("problem", problem);
    this.emit("ended", end);
  }

  /** @param {number} round */
  async #openPlayer(round) {
    const player = await this.#options.makePlayer({ delayMs: this.#options.playbackDelayMs() });
    if (round !== this.#round) return; // given up meanwhile
    this.#player = player;
    await player.init();
    const { speakerId } = this.#options.devices();
    if (speakerId) await player.setSinkId(speakerId).catch(() => false); // gone: the default one plays
    player.addEventListener("suspended", () => this.#reportProblem("sound_suspended"));
    player.addEventListener("resumed", () => this.emit("solved", { code: "sound_suspended" }));
  }

  /** @param {number} round */
  async #openMicrophone(round) {
    if (round !== this.#round) return;
    const { micId } = this.#options.devices();
    const microphone = await this.#options.openMic({ deviceId: micId || undefined, chunkSamples: CHUNK_SAMPLES });
    if (round !== this.#round) return microphone.close();
    const before = this.#microphone;
    this.#micEnd?.abort();
    this.#microphone = microphone;
    this.#listenToMicrophone(microphone);
    this.emit("opened", null);
    await before?.close();
  }

  /** @param {Microphone} microphone */
  #listenToMicrophone(microphone) {
    this.#micEnd = new AbortController();
    const { signal } = this.#micEnd;
    /** @param {string} type @param {(detail: any) => void} listener `any`: each event has its own detail */
    const on = (type, listener) =>
      microphone.addEventListener(type, (event) => listener(/** @type {CustomEvent} */ (event).detail), { signal });
    on("chunk", ({ audio }) => {
      this.#session.sendChunk(audio);
      microphone.recycle(audio);
    });
    on("level", ({ rms }) => {
      this.#inputRms = rms;
      this.emit("level", { rms: this.#devices.isMuted ? 0 : rms });
    });
    on("silent", () => this.#reportProblem("silent_microphone"));
    on("audible", () => this.emit("solved", { code: "silent_microphone" }));
    on("suspended", () => this.#reportProblem("sound_suspended"));
    on("resumed", () => this.emit("solved", { code: "sound_suspended" }));
    on("ended", (error) => {
      this.#inputRms = 0;
      this.emit("level", { rms: 0 });
      this.emit("problem", problemOfDevice(error, true));
    });
  }

  /** @param {string} code */
  #reportProblem(code) {
    if (this.#session.isActive) this.emit("problem", warningOf(code));
  }

  async #closeDevices() {
    const [microphone, player] = [this.#microphone, this.#player];
    this.#microphone = null;
    this.#player = null;
    this.#inputRms = 0;
    this.#micEnd?.abort();
    void this.#wakeLock?.release();
    this.#wakeLock = null;
    this.#setDevices({ isStarting: false });
    await Promise.allSettled([microphone?.close(), player?.stop()]);
  }

  /** @param {Partial<HalfDevices>} change */
  #setDevices(change) {
    this.#devices = { ...this.#devices, ...change };
    this.emit("devices", this.#devices);
  }
}
