/** Plays the answer: Web Audio around the playback schedule. Device. */
import { Emitter } from "../../shared/async.js";
import { base64ToFloats, fromDb, rms } from "../../shared/pcm.js";
import { PlaybackSchedule } from "./playback-schedule.js";
import { keepRunning } from "./capture.js";
import { Resampler } from "./resampler.js";

/** @import { PlayerGap, Queued } from "../../../types/devices.js" */
/** @import { Placement } from "./playback-schedule.js" */

const MS_PER_S = 1_000;
const RATE_HZ = 24_000; // of the chunks
const MAX_AHEAD_S = 120;
const FADE_S = 0.03; // duration of a fade, seconds
const FADE_CONSTANT_S = FADE_S / 6; // of its exponential course: 0.25 % remain at its end
const METER_SAMPLES = 1_024;
const METRICS_INTERVAL_MS = 200;
const LEAD_S = 0.005; // lead time of scheduling, without which the first samples would be cut off

/**
 * Playback of a session's audio.
 *
 * Order: `init()` → `beginTurn(turnId)` → `playChunk()`… → `endTurn()`. `flush()` fades out within 30 ms
 * and then ignores chunks until a `beginTurn` with another turnId (or none), so that nothing stale is heard.
 * `hold()` fades out and retains the rest, `release()` resumes there; `duck(gainDb)` only lowers.
 * Output chain: sources → fader → meter → loudspeaker.
 * Memory bound: samples of queued chunks only, at most two minutes of them.
 * Events (CustomEvent, `detail`): `metrics` each 200 ms · `gap` PlayerGap · `placed` for each chunk · `flushed` ·
 * `drained` when the queue has played out · `suspended`/`resumed`.
 * @extends {Emitter<Record<string, any>>} `any`: each event has its own detail
 */
export class AudioPlayer extends Emitter {
  #delayMs;
  /** @type {AudioContext | null} */ #context = null;
  /** The audible output, for recorders; null before `init`. @type {AnalyserNode | null} */ output = null;
  /** @type {GainNode | null} */ #fader = null;
  #duckGain = 1;
  #meter = new Float32Array(METER_SAMPLES);
  #endWatch = () => {};
  #schedule;
  /** @type {Resampler | null} */ #resampler = null;
  /** @type {Map<number, Queued>} by placement id */ #queued = new Map();
  #chunkIndex = 0;
  /** @type {string | number | null} */ #turnId = null;
  #isDiscarding = false;
  #wasPlaying = false;
  /** @type {ReturnType<typeof setInterval> | undefined} */ #timer;

  /** @param {{delayMs?: number}} [options] base playback delay */
  constructor({ delayMs = 200 } = {}) {
    super();
    this.#delayMs = delayMs;
    this.#schedule = new PlaybackSchedule({ baseDelayS: delayMs / MS_PER_S });
  }

  /** Opens the output, unless it is open. */
  async init() {
    if (this.#context !== null) return;
    const context = new AudioContext({ latencyHint: "interactive" });
    this.#context = context;
    this.output = new AnalyserNode(context, { fftSize: METER_SAMPLES });
    this.output.connect(context.destination);
    this.#replaceFader(1);
    const { sampleRate: gridHz } = context;
    this.#schedule = new PlaybackSchedule({ baseDelayS: this.#delayMs / MS_PER_S, maxAheadS: MAX_AHEAD_S, gridHz });
    if (gridHz !== RATE_HZ) this.#resampler = new Resampler(RATE_HZ, gridHz);
    this.#endWatch = keepRunning(context, (isRunning) => this.emit(isRunning ? "resumed" : "suspended", null));
    this.#timer = setInterval(() => this.#report(), METRICS_INTERVAL_MS);
  }

  /** False until the browser lets the page play. */
  get isRunning() {
    return this.#context?.state === "running";
  }

  /** Tries again to start the output. */
  resume() {
    this.#context?.resume().catch(() => undefined); // `keepRunning` tries again at the next gesture
  }

  get isPlaying() {
    return this.#context !== null && this.#schedule.isPlaying(this.#now);
  }

  get aheadMs() {
    return this.#schedule.aheadS(this.#now) * MS_PER_S;
  }

  get #now() {
    return this.#context?.currentTime ?? 0;
  }

  get metrics() {
    return {
      aheadMs: this.aheadMs,
      gapCount: this.#schedule.gapCount,
      totalShiftMs: this.#schedule.totalShiftS * MS_PER_S,
      targetDelayMs: this.#schedule.targetDelayS * MS_PER_S,
    };
  }

  /** Level of the last 20 ms or so, after volume. */
  outputRms() {
    if (this.output === null) return 0;
    this.output.getFloatTimeDomainData(this.#meter);
    return rms(this.#meter);
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
   * @param {string} chunk Base64 of samples at 24 kHz, as received
   * @returns {boolean} false: not played, since the turn was flushed, the queue is full or not `init`ed
   */
  playChunk(chunk) {
    if (this.#isDiscarding || this.#context === null) return false;
    const samples = base64ToFloats(chunk);
    if (samples.length === 0) return true;
    if (!this.#schedule.isTurnOpen) this.beginTurn();
    return this.#enqueue(this.#toContextRate(samples));
  }

  endTurn() {
    if (this.#resampler !== null && this.#schedule.isTurnOpen && this.#chunkIndex > 0) {
      const tail = new Float32Array(this.#resampler.maxOutputSamples(0));
      const length = this.#resampler.flush(tail);
      if (length > 0) this.#enqueue(tail.subarray(0, length));
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
    if (lostMs > 0) this.emit("flushed", null);
    return lostMs;
  }

  /** Drops what is queued; the rest of the turn is played. */
  skipToNow() {
    const isDiscarding = this.#isDiscarding;
    this.flush();
    this.#isDiscarding = isDiscarding;
  }

  /** Fades out within 30 ms and pauses; chunks are still accepted. */
  hold() {
    if (this.#context === null || this.#schedule.isHeld) return;
    this.#schedule.hold(this.#now);
    this.#silence();
  }

  release() {
    if (this.#context === null || !this.#schedule.isHeld) return;
    const now = this.#now + LEAD_S;
    this.#fader?.disconnect();
    this.#replaceFader(0);
    this.#fade(this.#duckGain);
    for (const placement of this.#schedule.release(now)) this.#startSource(placement, now);
  }

  /** Sets the volume of the answer. @param {number} gainDb 0 or below */
  duck(gainDb) {
    this.#duckGain = fromDb(gainDb);
    this.#fade(this.#duckGain);
  }

  /** Base delay of the next turn. @param {number} delayMs */
  setDelay(delayMs) {
    this.#delayMs = delayMs;
    this.#schedule.setBaseDelay(delayMs / MS_PER_S);
  }

  /** @param {string} deviceId "" for the system's default @returns {Promise<boolean>} false where the browser cannot choose */
  async setSinkId(deviceId) {
    const context = /** @type {AudioContext & {setSinkId?: (id: string) => Promise<void>} | null} */ (this.#context);
    if (typeof context?.setSinkId !== "function") return false;
    await context.setSinkId(deviceId);
    return true;
  }

  async stop() {
    const context = this.#context;
    if (context === null) return;
    this.flush();
    clearInterval(this.#timer);
    this.#endWatch();
    this.#context = null;
    await context.close();
  }

  /** Sources created from now on play through a fader of their own. @param {number} gain */
  #replaceFader(gain) {
    this.#fader = new GainNode(/** @type {AudioContext} */ (this.#context), { gain });
    this.#fader.connect(/** @type {AnalyserNode} */ (this.output));
  }

  #fade(/** @type {number} */ gain) {
    this.#fader?.gain.setTargetAtTime(gain, this.#now, FADE_CONSTANT_S);
  }

  #toContextRate(/** @type {Float32Array} */ samples) {
    if (this.#resampler === null) return samples;
    const output = new Float32Array(this.#resampler.maxOutputSamples(samples.length));
    return output.subarray(0, this.#resampler.process(samples, output));
  }

  #enqueue(/** @type {Float32Array} */ samples) {
    const context = /** @type {AudioContext} */ (this.#context);
    const now = context.currentTime + LEAD_S;
    const durationS = samples.length / context.sampleRate;
    const { placement, gapS, isCounted } = this.#schedule.place(durationS, now);
    const chunkIndex = this.#chunkIndex;
    this.#chunkIndex += 1;
    if (isCounted) {
      const [{ gapCount: gapIndex, totalShiftMs }, turn] = [this.metrics, this.#schedule.turnCount];
      /** @type {PlayerGap} */ const gap = { gapIndex, gapMs: gapS * MS_PER_S, totalShiftMs, chunkIndex, turn };
      this.emit("gap", gap);
    }
    if (placement === null) return false;
    const buffer = new AudioBuffer({ length: samples.length, sampleRate: context.sampleRate });
    buffer.copyToChannel(/** @type {Float32Array<ArrayBuffer>} */ (samples), 0);
    this.#queued.set(placement.id, { buffer, source: null });
    if (!this.#schedule.isHeld) this.#startSource(placement, now);
    this.#wasPlaying = true;
    this.emit("placed", null);
    return true;
  }

  #startSource(/** @type {Placement} */ { id, startS }, /** @type {number} */ now) {
    const queued = this.#queued.get(id);
    if (queued === undefined || this.#context === null || this.#fader === null) return;
    const source = new AudioBufferSourceNode(this.#context, { buffer: queued.buffer });
    source.connect(this.#fader);
    queued.source = source;
    source.onended = () => {
      source.disconnect();
      if (queued.source === source) this.#queued.delete(id);
    };
    source.start(Math.max(startS, now), Math.max(0, now - startS));
  }

  /** Fades out all sources created so far, and stops them. */
  #silence() {
    const faded = this.#fader;
    if (faded === null) return;
    this.#fade(0);
    setTimeout(() => faded.disconnect(), 4 * FADE_S * MS_PER_S);
    this.#replaceFader(this.#duckGain);
    const endS = this.#now + FADE_S;
    for (const queued of this.#queued.values()) {
      const { source } = queued;
      queued.source = null; // so that its end is not counted as played
      source?.stop(endS);
    }
  }

  #report() {
    this.emit("metrics", this.metrics);
    const isPlaying = this.isPlaying;
    if (this.#wasPlaying && !isPlaying && !this.#schedule.isTurnOpen) {
      this.#wasPlaying = false;
      this.emit("drained", null);
    }
  }
}
