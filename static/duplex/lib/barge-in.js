/**
 * Lets the user interrupt the answer by speaking: microphone frames → gate → player. Pure.
 *
 * Events (CustomEvent, `detail`): `state` {state} · `interrupt` when the user's barge-in is
 * confirmed and the answer flushed: send the interrupt then. speech-gate.js explains the steps.
 */
import { SpeechGate } from "./speech-gate.js";

/** @import { AudioPlayer } from "./audio-player.js" */
/** @import { SpeechFrame } from "./speech-features.js" */
/** @import { GateAction } from "./speech-gate.js" */

const DUCK_DB = -9; // attenuation while a sound may still be a backchannel, dB

/**
 * "held": silent, but the answer may continue; "interrupted": silent until the next answer.
 * @typedef {"listening" | "speaking" | "ducked" | "held" | "interrupted"} BargeInState
 */

/**
 * @typedef {"isPlaying" | "outputRms" | "duck" | "hold" | "release" | "flush"} PlayerUse
 * @typedef {Pick<AudioPlayer, PlayerUse>} Player
 */

/**
 * A source of speech frames: the microphone or a file.
 * @typedef {EventTarget & {setFeatures: (isOn: boolean) => void, setWindows: (isOn: boolean) => void}} FrameSource
 */

/** Tells speech from other sounds, 512 samples at a time; see silero-gate.js.
 * @typedef {Object} VoiceDetector
 * @property {number} probability of speech in the last windows
 * @property {(window: Float32Array) => void} push
 */

export class BargeIn extends EventTarget {
  #player;
  #gate = new SpeechGate();
  #isEnabled = true;
  /** @type {FrameSource | null} */ #source = null;
  /** @type {VoiceDetector | null} */ #detector = null;
  /** @type {BargeInState} */ #state = "listening";

  /** @param {Player} player */
  constructor(player) {
    super();
    this.#player = player;
  }

  get state() {
    return this.#state;
  }

  /** Turning it off releases a held answer. @param {boolean} isEnabled */
  setEnabled(isEnabled) {
    if (this.#isEnabled && !isEnabled) this.#recover();
    this.#isEnabled = isEnabled;
    this.#gate.reset();
  }

  /** Consults a voice detector as well; null relies on the energy alone. @param {VoiceDetector | null} detector */
  setDetector(detector) {
    this.#detector = detector;
    this.#source?.setWindows(detector !== null);
  }

  /** Replaces the source of frames. @param {FrameSource | null} source */
  attach(source) {
    this.#source?.removeEventListener("feature", this.#onFrame);
    this.#source?.removeEventListener("window", this.#onWindow);
    this.#source?.setFeatures(false);
    this.#source?.setWindows(false);
    this.#source = source;
    source?.addEventListener("feature", this.#onFrame);
    source?.addEventListener("window", this.#onWindow);
    source?.setFeatures(true);
    source?.setWindows(this.#detector !== null);
  }

  /** Flushes the answer on behalf of the server or a button, without an `interrupt` event. */
  flush() {
    this.#player.flush();
    this.#player.duck(0);
    this.#gate.reset();
    this.#setState("interrupted");
  }

  close() {
    this.#recover();
    this.attach(null);
  }

  /** @type {(event: Event) => void} */ #onWindow = (event) => {
    this.#detector?.push(/** @type {CustomEvent<Float32Array>} */ (event).detail);
  };

  /** @type {(event: Event) => void} */ #onFrame = (event) => {
    const { detail } = /** @type {CustomEvent<SpeechFrame>} */ (event);
    const action = this.#gate.push(detail, {
      isPlaying: this.#player.isPlaying && this.#isEnabled,
      outputRms: this.#player.outputRms(),
      speechProbability: this.#detector?.probability,
    });
    this.#act(action);
    const { isPlaying } = this.#player; // after a flush it is not
    if (isPlaying && this.#gate.state === "idle") this.#setState("speaking");
    if (!isPlaying && this.#state !== "interrupted") this.#endAnswer();
  };

  /** @param {GateAction} action */
  #act(action) {
    if (action === "duck") {
      this.#player.duck(DUCK_DB);
      this.#setState("ducked");
    } else if (action === "hold") {
      this.#player.hold();
      this.#setState("held");
    } else if (action === "release") {
      this.#recover();
    } else if (action === "confirm") {
      this.flush();
      this.dispatchEvent(new Event("interrupt"));
    }
  }

  #endAnswer() {
    if (this.#state === "ducked" || this.#state === "held") this.#recover();
    this.#setState("listening");
  }

  #recover() {
    this.#player.duck(0);
    this.#player.release();
  }

  /** @param {BargeInState} state */
  #setState(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state } }));
  }
}
