// @ts-check
/**
 * A file in the microphone's place: the same chunks and levels, in real time. Device.
 *
 * Events (CustomEvent, `detail`): `chunk`, `level`, `feature`, `window` as the microphone's
 * · `progress` {elapsedS, totalS} · `frame-due` at 0.5 of each second of a
 * video's file time · `ended` when padding and file have been delivered, in whole chunks.
 */

import { CodedError } from "../../shared/coded-error.js";
import { Emitter } from "../../shared/emitter.js";
import { AUDIO_MAX_S, CAPTURE_RATE_HZ, VIDEO_MAX_S } from "./capture-format.js";
import { createCapture } from "./capture.js";
import { openMicrophone } from "./microphone.js";
import { MixerController } from "./mixer-controller.js";

/** @import { Capture, CaptureChunk, CaptureLevel, FileSourceOptions, SoundFileOptions } from "../../../types/devices.js" */
/** @import { Microphone } from "./microphone.js" */
/** @import { LiveSource } from "../../../types/duplex.js" */

export { AUDIO_MAX_S, PADDING_MAX_S, VIDEO_MAX_S } from "./capture-format.js";

/** Frames are taken at this part of each second. */
const FRAME_INSTANT_S = 0.5;
/** A video element further from the sound than this is set right. */
const MAX_VIDEO_DRIFT_S = 0.15;

/** Refuse what is empty or too long. @param {number} durationS @param {boolean} isVideo @throws {CodedError} */
export function checkDuration(durationS, isVideo) {
  if (!(durationS > 0)) throw new CodedError("empty");
  if (durationS > (isVideo ? VIDEO_MAX_S : AUDIO_MAX_S)) throw new CodedError("too_long");
}

/**
 * @param {Blob} file
 * @param {BaseAudioContext} context
 * @param {{isVideo?: boolean, durationS?: number}} [options] durationS of the video element: a video
 *   without a sound track then counts as silent
 * @throws {CodedError}
 */
export async function decodeSound(file, context, { isVideo = false, durationS } = {}) {
  if (durationS !== undefined) checkDuration(durationS, isVideo); // before the memory is spent
  let buffer;
  try {
    buffer = await context.decodeAudioData(await file.arrayBuffer());
  } catch (error) {
    if (!isVideo || durationS === undefined) throw new CodedError("undecodable", error);
    const length = Math.ceil(durationS * CAPTURE_RATE_HZ);
    return new AudioBuffer({ length, sampleRate: CAPTURE_RATE_HZ });
  }
  checkDuration(buffer.duration, isVideo);
  return buffer;
}

/**
 * @param {{durationS: number, paddingBeforeS: number, paddingAfterS: number, chunkS: number}} options
 * @returns {{fileStartS: number, totalS: number, chunkCount: number, frameInstantsS: number[]}}
 *   totalS in whole chunks; frame instants in file time
 */
export function planRun({ durationS, paddingBeforeS, paddingAfterS, chunkS }) {
  const chunkCount = Math.ceil((paddingBeforeS + durationS + paddingAfterS) / chunkS - 1e-9);
  const frameInstantsS = [];
  for (let atS = FRAME_INSTANT_S; atS < durationS; atS += 1) frameInstantsS.push(atS);
  return { fileStartS: paddingBeforeS, totalS: chunkCount * chunkS, chunkCount, frameInstantsS };
}

/** One run of a file. @extends {Emitter<Record<string, any>>} `any`: each event has its own detail */
export class FileSource extends Emitter {
  /** @readonly */
  mixer;
  #options;
  #plan;
  /** @type {Capture | null} */
  #capture = null;
  /** @type {AudioBufferSourceNode | null} */
  #player = null;
  /** @type {MediaStreamAudioSourceNode | null} */
  #microphone = null;
  #startS = 0;
  #chunkCount = 0;
  #isHeld = false;
  #frameIndex = 0;
  /** @type {"ready" | "running" | "ended"} */
  #state = "ready";

  /** @param {FileSourceOptions} options */
  constructor(options) {
    super();
    const { sound, context, paddingBeforeS = 0, paddingAfterS = 2, chunkSamples = CAPTURE_RATE_HZ } = options;
    this.#options = { ...options, paddingBeforeS, paddingAfterS, chunkSamples };
    this.mixer = options.mixer ?? new MixerController(context);
    const durationS = sound.duration;
    const chunkS = chunkSamples / CAPTURE_RATE_HZ;
    this.#plan = planRun({ durationS, paddingBeforeS, paddingAfterS, chunkS });
    this.mixer.measureFile(sound);
  }

  /** What the model hears, as a node. @returns {AudioNode} */
  get output() {
    return this.mixer.mix;
  }

  /** Called by `openFileSource` only. */
  async connect() {
    const { context, chunkSamples, microphone } = this.#options;
    this.#capture = await createCapture(context, chunkSamples, {
      onChunk: (chunk) => this.#handleChunk(chunk),
      onLevel: (level) => this.#handleLevel(level),
      onFeature: (frame) => this.emit("feature", frame),
      onWindow: (audio) => this.emit("window", audio),
    });
    this.mixer.mix.connect(this.#capture.node);
    if (microphone === undefined) return;
    this.#microphone = context.createMediaStreamSource(microphone);
    this.#microphone.connect(this.mixer.microphoneInput);
  }

  start() {
    const { context, sound, video } = this.#options;
    if (this.#state !== "ready" || this.#capture === null) return;
    this.#state = "running";
    context.resume().catch(() => undefined); // it was opened by a gesture
    this.#startS = context.currentTime;
    this.#player = new AudioBufferSourceNode(context, { buffer: sound });
    this.#player.connect(this.mixer.fileInput);
    this.#player.start(this.#startS + this.#plan.fileStartS);
    this.#capture.start();
    if (video) {
      video.muted = true;
      video.currentTime = 0;
    }
  }

  /** Stand still: neither file nor microphone is delivered. */
  async pause() {
    this.#isHeld = true;
    this.#options.video?.pause();
    await this.#options.context.suspend();
  }

  async resume() {
    this.#isHeld = false;
    await this.#options.context.resume();
  }

  /** End early; the rest of the chunk begun is delivered. */
  async stop() {
    if (this.#state !== "running") return;
    this.#state = "ended";
    this.#player?.stop();
    this.#options.video?.pause();
    await this.#capture?.stop();
  }

  /** Let all go; the microphone's stream is the caller's. */
  async close() {
    await this.stop();
    this.#capture?.close();
    this.#microphone?.disconnect();
    this.mixer.close();
    const { context } = this.#options;
    if (context.state !== "closed") await context.close();
  }

  /** @param {boolean} isOn */
  setFeatures(isOn) {
    this.#capture?.setFeatures(isOn);
  }

  /** @param {boolean} isOn */
  setWindows(isOn) {
    this.#capture?.setWindows(isOn);
  }

  /** @param {Float32Array} audio */
  recycle(audio) {
    this.#capture?.recycle(audio);
  }

  /** @param {CaptureChunk} chunk */
  #handleChunk(chunk) {
    if (this.#chunkCount >= this.#plan.chunkCount) return;
    this.#chunkCount += 1;
    this.emit("chunk", chunk);
    if (this.#chunkCount < this.#plan.chunkCount || this.#state !== "running") return;
    this.#state = "ended";
    this.#options.video?.pause();
    this.emit("ended", null);
  }

  /** @param {CaptureLevel} level */
  #handleLevel(level) {
    this.emit("level", level);
    if (this.#state !== "running") return;
    const elapsedS = this.#options.context.currentTime - this.#startS;
    const fileTimeS = elapsedS - this.#plan.fileStartS;
    this.emit("progress", { elapsedS, totalS: this.#plan.totalS });
    this.#followVideo(fileTimeS);
    const dueS = this.#plan.frameInstantsS[this.#frameIndex];
    if (dueS === undefined || fileTimeS < dueS) return;
    this.emit("frame-due", null);
    this.#frameIndex += 1;
  }

  /** Keep the picture with the sound. @param {number} fileTimeS */
  #followVideo(fileTimeS) {
    const { video, sound } = this.#options;
    if (!video || this.#isHeld) return; // levels may still come that were heard before the pause
    if (fileTimeS < 0 || fileTimeS >= sound.duration) {
      if (!video.paused) video.pause();
      return;
    }
    if (video.paused) video.play().catch(() => undefined); // the next level tries again
    if (Math.abs(video.currentTime - fileTimeS) > MAX_VIDEO_DRIFT_S) video.currentTime = fileTimeS;
  }
}

/** Make a file ready to play. @param {FileSourceOptions} options @returns {Promise<FileSource>} */
export async function openFileSource(options) {
  const source = new FileSource(options);
  await source.connect();
  return source;
}

// An audio file as the user of a call, alone or together with the microphone.

/** @param {SoundFileOptions} options @returns {Promise<LiveSource>} */
export async function openSoundFile(options) {
  const { sound, hasMicrophone, paddingBeforeS, paddingAfterS, onProgress } = options;
  const context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ });
  const microphone = hasMicrophone ? await openMicrophone({ ...options.microphone, context }) : null;
  const mixer = new MixerController(context, { mode: microphone ? "both" : "file" });
  const source = await openFileSource({
    sound,
    context,
    mixer,
    paddingBeforeS,
    paddingAfterS,
    ...(microphone && { microphone: microphone.stream }),
  });
  source.on("progress", onProgress);
  return withMicrophone(source, microphone);
}

/** One source of both: what the microphone says counts for the file, too. @param {FileSource} source @param {Microphone | null} microphone */
export function withMicrophone(source, microphone) {
  for (const type of ["silent", "audible", "ended"]) {
    microphone?.on(type, (detail) => source.emit(type, detail));
  }
  const closeFile = source.close.bind(source);
  return Object.assign(source, {
    isMicrophone: microphone !== null,
    async close() {
      await microphone?.close();
      await closeFile();
    },
  });
}
