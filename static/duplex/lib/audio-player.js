/** Plays the answer: Web Audio around the playback schedule. Device. */
import { Emitter } from "../../shared/async.js";
import { base64ToFloats, fromDb, rms } from "../../shared/pcm.js";
import { PlaybackSchedule } from "./playback-schedule.js";
import { keepRunning } from "./capture.js";
import { Resampler } from "./resampler.js";

/** @import { PlayerGap, PlayerOptions, Queued } from "../../../types/devices.js" */
/** @import { Placement } from "./playback-schedule.js" */

const MS_PER_S = 1_000;
const METRICS_INTERVAL_MS = 200;
const LEAD_S = 0.005; // lead time of scheduling, without which the first samples would be cut off

/**
 * Playback of a session's audio.
 *
 * Order: `init()` → `beginTurn(turnId)` → `playChunk()`… → `endTurn()`. `flush()` fades out within 30 ms
 * and then ignores chunks until a `beginTurn` with another turnId (or none), so that nothing stale is heard.
 * `hold()` fades out and retains the rest, `release()` resumes there; `duck(gainDb)` only lowers.
 * Memory bound: samples of queued chunks only, at most `maxAheadS` seconds of them.
 * Events (CustomEvent, `detail`): `metrics` each 200 ms · `gap` PlayerGap · `flushed`
 * {lostMs} · `drained` when the queue has played out · `suspended`/`resumed`
 * · `rawaudio` {samples, rateHz, playbackTimeS} for each chunk placed.
 * @extends {Emitter<Record<string, any>>} `any`: each event has its own detail
 */
export class AudioPlayer extends Emitter {
  #options;
  /** @type {PlayerOutput | null} */ #output = null;
  #schedule;
  /** @type {Resampler | null} */ #resampler = null;
  /** @type {Map<number, Queued>} by placement id */ #queued = new Map();
  #chunkIndex = 0;
  /** @type {string | number | null} */ #turnId = null;
  #isDiscarding = false;
  #wasPlaying = false;
  /** @type {ReturnType<typeof setInterval> | undefined} */ #timer;

  /** @param {PlayerOptions} [options] */
  constructor(options = {}) {
    super();
    this.#options = { rateHz: 24_000, delayMs: 200, maxAheadS: 120, ...options };
    this.#schedule = new PlaybackSchedule({ baseDelayS: this.#options.delayMs / MS_PER_S });
  }

  /** Opens the output, unless it is open. */
  async init() {
    if (this.#output !== null) return;
    const { context: given, rateHz, delayMs, maxAheadS } = this.#options;
    this.#output = new PlayerOutput(given);
    const { context } = this.#output;
    this.#schedule = new PlaybackSchedule({ baseDelayS: delayMs / MS_PER_S, maxAheadS, gridHz: context.sampleRate });
    if (context.sampleRate !== rateHz) this.#resampler = new Resampler(rateHz, context.sampleRate);
    context.addEventListener("statechange", this.#reportState);
    this.#timer = setInterval(() => this.#report(), METRICS_INTERVAL_MS);
  }

  /** The context it plays in; null before `init`. */
  get context() {
    return this.#output?.context ?? null;
  }

  /** The audible output as a node, for recorders; null before `init`. @returns {AudioNode | null} */
  get output() {
    return this.#output?.node ?? null;
  }

  get isRunning() {
    return this.context?.state === "running";
  }

  get isPlaying() {
    return this.#output !== null && this.#schedule.isPlaying(this.#now);
  }

  get isHeld() {
    return this.#schedule.isHeld;
  }

  get aheadMs() {
    return this.#schedule.aheadS(this.#now) * MS_PER_S;
  }

  get #now() {
    return this.#output?.context.currentTime ?? 0;
  }

  get metrics() {
    return {
      aheadMs: this.aheadMs,
      gapCount: this.#schedule.gapCount,
      totalShiftMs: this.#schedule.totalShiftS * MS_PER_S,
      turn: this.#schedule.turnCount,
      targetDelayMs: this.#schedule.targetDelayS * MS_PER_S,
    };
  }

  /** Level of the last 20 ms or so, after volume. */
  outputRms() {
    return this.#output?.rms() ?? 0;
  }

  /** @param {string | number | null} [turnId] a turn that was flushed stays silent */
  beginTurn(turnId = null) {
    if (this.#isDiscarding && turnId !== null && turnId === this.#turnId) return;
    this.#isDiscarding = false;
    this.#turnId = turnId;
    this.#chunkIndex = 0;
    this.#resampler?.reset();
    this.#schedule.beginTurn();
  }

  /**
   * @param {string | Float32Array} chunk Base64 as received, or samples at `rateHz`
   * @returns {boolean} false: not played, since the turn was flushed, the queue is full or not `init`ed
   */
  playChunk(chunk) {
    if (this.#isDiscarding || this.#output === null) return false;
    const samples = typeof chunk === "string" ? base64ToFloats(chunk) : chunk;
    if (samples.length === 0) return true;
    if (!this.#schedule.isTurnOpen) this.beginTurn();
    return this.#enqueue(this.#toContextRate(samples), samples);
  }

  endTurn() {
    if (this.#resampler !== null && this.#schedule.isTurnOpen && this.#chunkIndex > 0) {
      const tail = new Float32Array(this.#resampler.maxOutputSamples(0));
      const length = this.#resampler.flush(tail);
      if (length > 0) this.#enqueue(tail.subarray(0, length), null);
    }
    this.#schedule.endTurn();
  }

  /**
   * Fades out within 30 ms and drops the rest of the turn. Counted as a flush, not as a gap.
   * @returns {number} ms of sound that will not be heard
   */
  flush() {
    this.#isDiscarding = true;
    const lostMs = this.#schedule.flush(this.#now) * MS_PER_S;
    this.#silence();
    this.#queued.clear();
    this.#wasPlaying = false;
    if (lostMs > 0) this.emit("flushed", { lostMs });
    return lostMs;
  }

  /** Fades out within 30 ms and pauses; chunks are still accepted. */
  hold() {
    if (this.#output === null || this.#schedule.isHeld) return;
    this.#schedule.hold(this.#now);
    this.#silence();
  }

  release() {
    if (this.#output === null || !this.#schedule.isHeld) return;
    const now = this.#now + LEAD_S;
    this.#output.fadeIn();
    for (const placement of this.#schedule.release(now)) this.#startSource(placement, now);
  }

  /** Sets the volume of the answer. @param {number} gainDb 0 or below */
  duck(gainDb) {
    this.#output?.duck(fromDb(gainDb));
  }

  /** Base delay of the next turn. @param {number} delayMs */
  setDelay(delayMs) {
    this.#options.delayMs = delayMs;
    this.#schedule.setBaseDelay(delayMs / MS_PER_S);
  }

  /** @param {string} deviceId "" for the system's default @returns {Promise<boolean>} false when it cannot */
  async setSinkId(deviceId) {
    return (await this.#output?.setSinkId(deviceId)) ?? false;
  }

  async stop() {
    if (this.#output === null) return;
    const output = this.#output;
    this.flush();
    clearInterval(this.#timer);
    output.context.removeEventListener("statechange", this.#reportState);
    this.#output = null;
    await output.close();
  }

  #toContextRate(/** @type {Float32Array} */ samples) {
    if (this.#resampler === null) return samples;
    const output = new Float32Array(this.#resampler.maxOutputSamples(samples.length));
    return output.subarray(0, this.#resampler.process(samples, output));
  }

  /**
   * @param {Float32Array} samples at the context's rate
   * @param {Float32Array | null} raw the same at the chunk's rate; null for a resampler's tail
   */
  #enqueue(samples, raw) {
    const { context } = /** @type {PlayerOutput} */ (this.#output);
    const now = context.currentTime + LEAD_S;
    const durationS = samples.length / context.sampleRate;
    const { placement, gapS, isCounted } = this.#schedule.place(durationS, now);
    const chunkIndex = this.#chunkIndex;
    this.#chunkIndex += 1;
    if (isCounted) this.#reportGap(gapS, chunkIndex);
    if (placement === null) return false;
    const buffer = new AudioBuffer({ length: samples.length, sampleRate: context.sampleRate });
    buffer.copyToChannel(/** @type {Float32Array<ArrayBuffer>} */ (samples), 0);
    this.#queued.set(placement.id, { buffer, source: null });
    if (!this.#schedule.isHeld) this.#startSource(placement, now);
    this.#wasPlaying = true;
    const { rateHz } = this.#options;
    if (raw) this.emit("rawaudio", { samples: raw, rateHz, playbackTimeS: placement.startS });
    return true;
  }

  #startSource(/** @type {Placement} */ { id, startS }, /** @type {number} */ now) {
    const queued = this.#queued.get(id);
    if (queued === undefined || this.#output === null) return;
    const source = this.#output.createSource(queued.buffer);
    queued.source = source;
    source.onended = () => {
      source.disconnect();
      if (queued.source === source) this.#queued.delete(id);
    };
    source.start(Math.max(startS, now), Math.max(0, now - startS));
  }

  #silence() {
    const endS = this.#output?.silence();
    for (const queued of this.#queued.values()) {
      const { source } = queued;
      queued.source = null; // so that its end is not counted as played
      source?.stop(endS);
    }
  }

  #reportGap(/** @type {number} */ gapS, /** @type {number} */ chunkIndex) {
    /** @type {PlayerGap} */ const gap = {
      gapIndex: this.#schedule.gapCount,
      gapMs: gapS * MS_PER_S,
      totalShiftMs: this.#schedule.totalShiftS * MS_PER_S,
      chunkIndex,
      turn: this.#schedule.turnCount,
    };
    this.emit("gap", gap);
  }

  #reportState = () => this.emit(this.isRunning ? "resumed" : "suspended", null);

  #report() {
    this.emit("metrics", this.metrics);
    const isPlaying = this.isPlaying;
    if (this.#wasPlaying && !isPlaying && !this.#schedule.isTurnOpen) {
      this.#wasPlaying = false;
      this.emit("drained", null);
    }
  }
}

// Output chain of the player: sources → fader → meter → loudspeaker.

const FADE_S = 0.03; // duration of a fade, seconds
const METER_SAMPLES = 1_024;

/** A gain that tracks its own value, since not every browser reports it during a ramp. */
class Fader {
  /** @readonly */
  node;
  #from;
  #to;
  #startS;

  constructor(/** @type {BaseAudioContext} */ context, /** @type {number} */ gain) {
    this.node = new GainNode(context, { gain });
    this.#from = gain;
    this.#to = gain;
    this.#startS = context.currentTime;
  }

  fadeTo(/** @type {number} */ gain) {
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

  duck(/** @type {number} */ gain) {
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
