/**
 * Capture of 16 kHz mono: the worklet behind a node, opening of microphone or camera, and the user's microphone. Device.
 *
 * Events of the microphone (CustomEvent, `detail`): `chunk` CaptureChunk · `level` CaptureLevel · `feature` SpeechFrame ·
 * `window` 512 samples · `silent` / `audible` (all-zero sound for 2 s, and its end) · `ended` CodedError "unplugged" ·
 * `suspended` / `resumed` (the browser requires a gesture).
 */

import { CAPTURE_RATE_HZ, PROCESSOR_NAME } from "./capture-format.js";
import { deviceCode } from "./call-state.js";
import { joinChunks } from "../../shared/pcm.js";
import { CodedError } from "../../shared/texts.js";
import { Emitter } from "../../shared/async.js";

/** @import { CaptureChunk, CaptureLevel, MicrophoneOptions } from "../../../types/devices.js" */

const PROCESSOR_URL = "/static/duplex/lib/capture-processor.js";

/** @type {WeakMap<BaseAudioContext, Promise<void>>} */ const loadedModules = new WeakMap();

/**
 * Captures a node. Levels are emitted at once, `chunk` events after `start`.
 * @extends {Emitter<Record<string, any>>} `any`: each event has its own detail
 */
export class Capture extends Emitter {
  /** @type {AudioWorkletNode | null} */ #worklet = null;
  #isRunning = false;

  /** @param {AudioNode} node @param {number} chunkSamples at 16 kHz */
  async listenTo(node, chunkSamples) {
    const { context } = node;
    const loading = loadedModules.get(context) ?? context.audioWorklet.addModule(PROCESSOR_URL); // once for each context
    loadedModules.set(context, loading);
    await loading;
    const processorOptions = { chunkSize: chunkSamples, waitsForStart: true };
    this.#worklet = new AudioWorkletNode(context, PROCESSOR_NAME, { numberOfInputs: 1, numberOfOutputs: 0, processorOptions });
    this.#worklet.port.onmessage = ({ data: message }) => {
      if (message.type === "chunk") this.onChunk(message);
      else if (message.type === "level") this.onLevel(message);
      else this.emit(message.type, message.type === "window" ? message.audio : message);
    };
    node.connect(this.#worklet);
  }

  #tell(/** @type {object} */ command, /** @type {Transferable[]} */ transfer = []) {
    this.#worklet?.port.postMessage(command, transfer);
  }

  start() {
    this.#isRunning = true;
    this.#tell({ type: "start" });
  }

  /** Stops the chunks; resolves once the rest has been delivered. Levels continue. */
  async stop() {
    // The port of a suspended context still answers; that of a closed one does not.
    if (!this.#isRunning || this.#worklet?.context.state === "closed") return;
    this.#isRunning = false;
    const stopped = new Promise((resolve) => this.addEventListener("stopped", resolve, { once: true }));
    this.#tell({ type: "stop" });
    await stopped;
  }

  /** Turns on `feature` events, 100 a second, for the speech gate. @param {boolean} isOn */
  setFeatures(isOn) {
    this.#tell({ type: "features", isOn });
  }

  /** Turns on `window` events, 31 a second, for a voice detector. @param {boolean} isOn */
  setWindows(isOn) {
    this.#tell({ type: "windows", isOn });
  }

  /** Returns a chunk's memory to the audio thread. @param {Float32Array} audio not to be used afterwards */
  recycle({ buffer }) {
    this.#tell({ type: "recycle", buffer }, [/** @type {ArrayBuffer} */ (buffer)]);
  }

  close() {
    this.#tell({ type: "close" });
    if (this.#worklet) this.#worklet.port.onmessage = null;
    this.#worklet = null;
    this.emit("stopped", null); // ends a `stop` under way
  }

  /** @param {CaptureChunk} chunk @protected */
  onChunk(chunk) {
    this.emit("chunk", chunk);
  }

  /** @param {CaptureLevel} level @protected */
  onLevel(level) {
    this.emit("level", level);
  }
}

/**
 * @param {MediaStreamConstraints} constraints
 * @param {string} missing code if there is no such device
 * @throws {CodedError} `insecure_context`, `permission_denied`, `busy`, `unsupported` or `missing`
 */
export async function openUserMedia(constraints, missing) {
  if (globalThis.isSecureContext === false) throw new CodedError("insecure_context");
  const devices = globalThis.navigator?.mediaDevices;
  if (devices?.getUserMedia === undefined) throw new CodedError("unsupported");
  try {
    return await devices.getUserMedia(constraints);
  } catch (error) {
    throw new CodedError(deviceCode(error, missing), error);
  }
}

/**
 * Opens the chosen device, or the default one if it is gone: before permission is granted the browser hides which there are.
 * @template Opened
 * @param {(device: {deviceId?: {exact: string}}) => Promise<Opened>} open
 * @param {string | undefined} deviceId
 * @param {string} missing code if there is no such device
 */
export async function openChosen(open, deviceId, missing) {
  if (!deviceId) return open({});
  return open({ deviceId: { exact: deviceId } }).catch((error) => (error?.code === missing ? open({}) : Promise.reject(error)));
}

const SILENT_AFTER_MS = 2_000; // duration of all-zero samples from which the microphone counts as silent, ms
const LEVEL_INTERVAL_MS = 50;

/** At 16 kHz where the browser allows it, else at its own rate. @param {MediaStream} stream */
function connectStream(stream) {
  const connect = (/** @type {AudioContext} */ context) => ({ context, source: context.createMediaStreamSource(stream) });
  /** @type {AudioContext | null} */ let context = null;
  try {
    context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ, latencyHint: "interactive" });
    return connect(context);
  } catch {
    // Firefox rejects a stream whose rate differs from the context's; the worklet then resamples.
    context?.close();
    return connect(new AudioContext({ latencyHint: "interactive" }));
  }
}

export class Microphone extends Capture {
  #silentMs = 0;
  #isClosed = false;
  #endWatch = () => {};

  constructor(/** @type {MediaStream} */ stream) {
    super();
    this.stream = stream;
    const { context, source } = connectStream(stream);
    this.context = context;
    this.output = source; // its node in the context, for recorders and mixers
  }

  get label() {
    return this.stream.getAudioTracks()[0]?.label ?? "";
  }

  /** Called by `openMicrophone` only. @param {number} chunkSamples */
  async connect(chunkSamples) {
    await this.listenTo(this.output, chunkSamples);
    const [track] = this.stream.getAudioTracks();
    track?.addEventListener("ended", () => this.emit("ended", new CodedError("unplugged")));
    this.#endWatch = keepRunning(this.context, (isRunning) => this.emit(isRunning ? "resumed" : "suspended", null));
  }

  /** @override */
  async close() {
    if (this.#isClosed) return;
    this.#endWatch();
    super.close();
    this.#isClosed = true;
    this.output.disconnect();
    for (const track of this.stream.getTracks()) track.stop();
    if (this.context.state !== "closed") await this.context.close();
  }

  /** @param {string} type @param {unknown} detail @override */
  emit(type, detail) {
    if (!this.#isClosed) super.emit(type, detail);
  }

  /** @param {CaptureLevel} level @override @protected */
  onLevel(level) {
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
  const wish = { channelCount: 1, echoCancellation, noiseSuppression, autoGainControl };
  const ask = (/** @type {object} */ device) => openUserMedia({ audio: { ...device, ...wish } }, "no_microphone");
  const stream = await openChosen(ask, deviceId, "no_microphone");
  /** @type {Microphone | null} */ let microphone = null;
  try {
    microphone = new Microphone(stream);
    await microphone.connect(options.chunkSamples ?? CAPTURE_RATE_HZ);
    return microphone;
  } catch (error) {
    await microphone?.close();
    for (const track of stream.getTracks()) track.stop();
    throw error instanceof CodedError ? error : new CodedError("unsupported", error);
  }
}

/** Records an open source, up to a limit. @param {Capture} source @param {number} maxSamples at 16 kHz */
export function recordFrom(source, maxSamples) {
  /** @type {Float32Array[]} */ const chunks = [];
  let lengthSamples = 0;
  let fromS = 0;
  /** @type {() => void} */ let offChunks = () => {};
  const full = new Promise((/** @type {(value: void) => void} */ resolve) => {
    offChunks = source.on("chunk", (/** @type {CaptureChunk} */ { audio, endTimeS }) => {
      if (lengthSamples >= maxSamples) return;
      if (lengthSamples === 0) fromS = endTimeS - audio.length / CAPTURE_RATE_HZ;
      chunks.push(audio.slice());
      lengthSamples += audio.length;
      source.recycle(audio);
      if (lengthSamples >= maxSamples) resolve();
    });
  });
  source.start();
  return {
    full, // resolves at the limit
    lengthSamples: () => lengthSamples,
    fromS: () => fromS, // context time of the first sample
    /** Resolves to mono samples, 16 kHz. */
    async finish() {
      await source.stop();
      offChunks();
      return joinChunks(chunks).subarray(0, maxSamples);
    },
  };
}

// Keeps audio contexts running.

const GESTURES = ["pointerdown", "keydown", "touchend"];

/**
 * Resumes a context at each gesture and whenever the system suspends it.
 * @param {AudioContext} context
 * @param {(isRunning: boolean) => void} onChange
 */
export function keepRunning(context, onChange) {
  const tryResume = () => {
    // Safari reports "interrupted" after a phone call, which the standard's type lacks.
    if (context.state === "running" || context.state === "closed") return;
    context.resume().catch(() => undefined); // rejected without a gesture: retried at the next one
  };
  const ending = new AbortController();
  const { signal } = ending;
  for (const type of GESTURES) globalThis.addEventListener(type, tryResume, { passive: true, signal });
  context.addEventListener("statechange", () => (onChange(context.state === "running"), tryResume()), { signal });
  tryResume();
  return () => ending.abort();
}

/** @param {AudioContext} context @param {AbortSignal} [signal] ends the wait @returns {Promise<void>} */
export function untilRunning(context, signal) {
  return new Promise((resolve, reject) => {
    const check = () => {
      if (context.state === "running") resolve();
    };
    context.addEventListener("statechange", check, { signal });
    signal?.addEventListener("abort", () => reject(signal.reason));
    check();
  });
}
