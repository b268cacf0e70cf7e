/** Keeps audio contexts running, and the output chain of the player. Device. */

import { rms } from "../../shared/pcm.js";

const GESTURES = ["pointerdown", "keydown", "touchend"];

/** Resumes a context at each gesture and whenever the system suspends it. @param {AudioContext} context @param {EventTarget} [gestureTarget] */
export function keepRunning(context, gestureTarget = globalThis) {
  const tryResume = () => {
    // Safari reports "interrupted" after a phone call, which the standard's type lacks.
    if (context.state === "running" || context.state === "closed") return;
    context.resume().catch(() => undefined); // rejected without a gesture: retried at the next one
  };
  const ending = new AbortController();
  const { signal } = ending;
  for (const type of GESTURES) gestureTarget.addEventListener(type, tryResume, { passive: true, signal });
  context.addEventListener("statechange", tryResume, { signal });
  tryResume();
  return () => ending.abort();
}

/** @param {AudioContext} context @param {AbortSignal} [signal] ends the wait @returns {Promise<void>} */
export function untilRunning(context, signal) {
  return new Promise((resolve, reject) => {
    const check = () => {
      if (context.state !== "running") return;
      context.removeEventListener("statechange", check);
      resolve();
    };
    context.addEventListener("statechange", check);
    signal?.addEventListener("abort", () => {
      context.removeEventListener("statechange", check);
      reject(signal.reason);
    });
    check();
  });
}

// Output chain of the player: sources → fader → meter → loudspeaker.

const FADE_S = 0.03; // duration of a fade, seconds
const METER_SAMPLES = 1_024;
const MS_PER_S = 1_000;

/** A gain that tracks its own value, since not every browser reports it during a ramp. */
class Fader {
  /** @readonly */
  node;
  #from;
  #to;
  #startS;

  /** @param {BaseAudioContext} context @param {number} gain */
  constructor(context, gain) {
    this.node = new GainNode(context, { gain });
    this.#from = gain;
    this.#to = gain;
    this.#startS = context.currentTime;
  }

  /** @param {number} gain */
  fadeTo(gain) {
    const now = this.node.context.currentTime;
    const part = Math.min(1, (now - this.#startS) / FADE_S);
    this.#from += (this.#to - this.#from) * part;
    this.#to = gain;
    this.#startS = now;
    this.node.gain.cancelScheduledValues(now);
    this.node.gain.setValueAtTime(this.#from, now);
    this.node.gain.linearRampToValueAtTime(gain, now + FADE_S);
  }
}

export class PlayerOutput {
  /** @readonly */
  context;
  /** The audible output, for recorders. @readonly */
  node;
  #isOwnContext;
  #fader;
  #duckGain = 1;
  #meter = new Float32Array(METER_SAMPLES);
  #endWatch;

  /** @param {AudioContext | undefined} context default: its own */
  constructor(context) {
    this.#isOwnContext = context === undefined;
    this.context = context ?? new AudioContext({ latencyHint: "interactive" });
    this.node = new AnalyserNode(this.context, { fftSize: METER_SAMPLES });
    this.#fader = new Fader(this.context, 1);
    this.#fader.node.connect(this.node).connect(this.context.destination);
    this.#endWatch = keepRunning(this.context);
  }

  /** Level of the last 20 ms or so, amplitude. */
  rms() {
    this.node.getFloatTimeDomainData(this.#meter);
    return rms(this.#meter);
  }

  /** @param {AudioBuffer} buffer @returns {AudioBufferSourceNode} connected, not started */
  createSource(buffer) {
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.#fader.node);
    return source;
  }

  /** Fade out all sources created so far. @returns {number} context time at which they are silent */
  silence() {
    const faded = this.#fader;
    faded.fadeTo(0);
    setTimeout(() => faded.node.disconnect(), 4 * FADE_S * MS_PER_S);
    this.#fader = new Fader(this.context, this.#duckGain);
    this.#fader.node.connect(this.node);
    return this.context.currentTime + FADE_S;
  }

  /** Let the sources created from now on fade in. */
  fadeIn() {
    this.#fader.node.disconnect();
    this.#fader = new Fader(this.context, 0);
    this.#fader.node.connect(this.node);
    this.#fader.fadeTo(this.#duckGain);
  }

  /** @param {number} gain */
  duck(gain) {
    this.#duckGain = gain;
    this.#fader.fadeTo(gain);
  }

  /** @param {string} deviceId "" for the system's default @returns {Promise<boolean>} false where the browser cannot choose */
  async setSinkId(deviceId) {
    const context = /** @type {AudioContext & {setSinkId?: (id: string) => Promise<void>}} */ (this.context);
    if (typeof context.setSinkId !== "function") return false;
    await context.setSinkId(deviceId);
    return true;
  }

  async close() {
    this.#endWatch();
    // A shared context lives on, so our node is disconnected once the fade is over.
    setTimeout(() => this.node.disconnect(), 4 * FADE_S * MS_PER_S);
    if (this.#isOwnContext && this.context.state !== "closed") await this.context.close();
  }
}
