/**
 * The user's microphone as a stream of 16 kHz chunks, with levels and typed errors. Device.
 *
 * Events (CustomEvent, `detail`): `chunk` CaptureChunk · `level` CaptureLevel · `feature` SpeechFrame
 * (after `setFeatures(true)`) · `window` 512 samples (after `setWindows(true)`) · `silent` / `audible` (all-zero sound for 2 s, and its end) ·
 * `ended` CodedError "unplugged" · `suspended` / `resumed` (the browser requires a gesture).
 */
import { CodedError } from "../../shared/texts.js";
import { Emitter } from "../../shared/emitter.js";
import { keepRunning } from "./audio-context.js";
import { createCapture } from "./capture.js";
import { CAPTURE_RATE_HZ } from "./capture-format.js";
import { openUserMedia } from "./user-media.js";

/** @import { Capture, CaptureLevel, MicrophoneOptions } from "../../../types/devices.js" */

const SILENT_AFTER_MS = 2_000; // duration of all-zero samples from which the microphone counts as silent, ms
const LEVEL_INTERVAL_MS = 50;

/** At 16 kHz where the browser allows it, else at its own rate. @param {MediaStream} stream @param {MicrophoneOptions} options */
function connectStream(stream, { context: given }) {
  if (given) return { context: given, source: given.createMediaStreamSource(stream), isOwn: false };
  /** @type {AudioContext | null} */ let context = null;
  try {
    context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ, latencyHint: "interactive" });
    return { context, source: context.createMediaStreamSource(stream), isOwn: true };
  } catch {
    // Firefox rejects a stream whose rate differs from the context's; the worklet then resamples.
    context?.close();
    context = new AudioContext({ latencyHint: "interactive" });
    return { context, source: context.createMediaStreamSource(stream), isOwn: true };
  }
}

/** @extends {Emitter<Record<string, any>>} `any`: each event has its own detail */
export class Microphone extends Emitter {
  #stream;
  #context;
  #source;
  #isOwnContext;
  /** @type {Capture | null} */ #capture = null;
  #silentMs = 0;
  #isClosed = false;
  #endWatch = () => {};

  /** @param {MediaStream} stream @param {MicrophoneOptions} options */
  constructor(stream, options) {
    super();
    this.#stream = stream;
    const connected = connectStream(stream, options);
    this.#context = connected.context;
    this.#source = connected.source;
    this.#isOwnContext = connected.isOwn;
  }

  get context() {
    return this.#context;
  }

  /** Its node in the context, for recorders and mixers. @returns {AudioNode} */
  get output() {
    return this.#source;
  }

  get stream() {
    return this.#stream;
  }

  get label() {
    return this.#stream.getAudioTracks()[0]?.label ?? "";
  }

  /** Called by `openMicrophone` only. @param {number} chunkSamples */
  async connect(chunkSamples) {
    this.#capture = await createCapture(this.#context, chunkSamples, {
      onChunk: (chunk) => this.emit("chunk", chunk),
      onLevel: (level) => this.#onLevel(level),
      onFeature: (frame) => this.emit("feature", frame),
      onWindow: (audio) => this.emit("window", audio),
    });
    this.#source.connect(this.#capture.node);
    const [track] = this.#stream.getAudioTracks();
    track?.addEventListener("ended", () => this.emit("ended", new CodedError("unplugged")));
    const reportState = () => this.emit(this.#context.state === "running" ? "resumed" : "suspended", null);
    this.#context.addEventListener("statechange", reportState);
    const endKeeping = keepRunning(this.#context);
    this.#endWatch = () => {
      this.#context.removeEventListener("statechange", reportState);
      endKeeping();
    };
  }

  start() {
    this.#capture?.start();
  }

  /** Stops the chunks; resolves once the rest has been delivered. Levels continue. */
  async stop() {
    await this.#capture?.stop();
  }

  /** Turns on `feature` events, 100 a second, for the speech gate. @param {boolean} isOn */
  setFeatures(isOn) {
    this.#capture?.setFeatures(isOn);
  }

  /** Turns on `window` events, 31 a second, for a voice detector. @param {boolean} isOn */
  setWindows(isOn) {
    this.#capture?.setWindows(isOn);
  }

  /** Returns a chunk's memory to the audio thread. @param {Float32Array} audio not to be used afterwards */
  recycle(audio) {
    this.#capture?.recycle(audio);
  }

  async close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#endWatch();
    this.#capture?.close();
    this.#source.disconnect();
    for (const track of this.#stream.getTracks()) track.stop();
    if (this.#isOwnContext && this.#context.state !== "closed") await this.#context.close();
  }

  /** @param {string} type @param {unknown} detail @override */
  emit(type, detail) {
    if (!this.#isClosed) super.emit(type, detail);
  }

  /** @param {CaptureLevel} level */
  #onLevel(level) {
    const wasSilent = this.#silentMs >= SILENT_AFTER_MS;
    this.#silentMs = level.isSilent ? this.#silentMs + LEVEL_INTERVAL_MS : 0;
    const isSilent = this.#silentMs >= SILENT_AFTER_MS;
    this.emit("level", level);
    if (isSilent !== wasSilent) this.emit(isSilent ? "silent" : "audible", null);
  }
}

/** Levels are delivered at once, chunks after `start()`. @param {MicrophoneOptions} [options] @throws {CodedError} */
export async function openMicrophone(options = {}) {
  const { deviceId, echoCancellation = true, noiseSuppression = true, autoGainControl = true } = options;
  const device = deviceId ? { deviceId: { exact: deviceId } } : {};
  const audio = { ...device, channelCount: 1, echoCancellation, noiseSuppression, autoGainControl };
  const stream = await openUserMedia({ audio }, "no_microphone");
  try {
    const microphone = new Microphone(stream, options);
    await microphone.connect(options.chunkSamples ?? CAPTURE_RATE_HZ);
    return microphone;
  } catch (error) {
    for (const track of stream.getTracks()) track.stop();
    throw error instanceof CodedError ? error : new CodedError("unsupported", error);
  }
}
