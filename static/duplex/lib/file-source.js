/**
 * Audio and video files as the source of a call: the same chunks and levels as the microphone, in real time. Device.
 *
 * Events (CustomEvent, `detail`): those of the microphone · `progress` {elapsedS, totalS} · `frame-due` at 0.5 of each
 * second of a video's file time · `ended` when padding and file have been delivered, in whole chunks.
 */

import { CodedError, MS_PER_S } from "../../shared/texts.js";
import { AUDIO_MAX_S, CAPTURE_RATE_HZ, planRun, VIDEO_MAX_S } from "./capture-format.js";
import { Capture, openMicrophone, recordFrom } from "./capture.js";
import { lufsOf, measureLufs } from "./measure.js";
import { MixerController } from "./mixer-controller.js";
import { videoEvent } from "../../shared/decode-sound.js";

/** @import { BenchOptions, CaptureChunk, CaptureLevel, FileSourceOptions, MicrophoneOptions, SoundFileOptions, VideoSourceOptions } from "../../../types/devices.js" */
/** @import { Microphone } from "./capture.js" */
/** @import { MixMode } from "./mixer-controller.js" */

const FRAME_INSTANT_S = 0.5; // position of the frame within each second
const MAX_VIDEO_DRIFT_S = 0.15; // drift between video and audio from which the video is repositioned

/** Rejects empty and overlong files. @param {number} durationS @param {boolean} isVideo @throws {CodedError} */
export function checkDuration(durationS, isVideo) {
  if (!(durationS > 0)) throw new CodedError("empty");
  if (durationS > (isVideo ? VIDEO_MAX_S : AUDIO_MAX_S)) throw new CodedError("too_long");
}

/**
 * @param {Blob} file
 * @param {number} [videoS] duration of a video, which counts as silent if it has no audio track
 * @returns {Promise<AudioBuffer>} at 16 kHz
 * @throws {CodedError}
 */
export async function decodeSound(file, videoS) {
  if (videoS !== undefined) checkDuration(videoS, true); // before decoding allocates memory
  const decoder = new OfflineAudioContext(1, 1, CAPTURE_RATE_HZ);
  let buffer;
  try {
    buffer = await decoder.decodeAudioData(await file.arrayBuffer());
  } catch (error) {
    if (videoS === undefined) throw new CodedError("undecodable", error);
    return new AudioBuffer({ length: Math.ceil(videoS * CAPTURE_RATE_HZ), sampleRate: CAPTURE_RATE_HZ });
  }
  checkDuration(buffer.duration, videoS !== undefined);
  return buffer;
}

/** One playback of a file. */
export class FileSource extends Capture {
  #options;
  #plan;
  /** @type {AudioBufferSourceNode | null} */ #player = null;
  #startS = 0;
  #chunkCount = 0;
  #isHeld = false;
  /** @type {CaptureChunk[]} */ #heldChunks = []; // completed while a pause took effect; at most a few
  #frameIndex = 0;
  /** @type {"ready" | "running" | "ended"} */ #state = "ready";

  constructor(/** @type {FileSourceOptions} */ options) {
    super();
    const { sound, mixer, microphone, paddingBeforeS, paddingAfterS, chunkSamples = CAPTURE_RATE_HZ } = options;
    const durationS = sound.duration;
    this.#options = { ...options, chunkSamples };
    this.mixer = mixer;
    this.output = mixer.mix; // the audio sent to the model, as a node
    this.microphone = microphone; // mixed in, where the mode says so
    this.isMicrophone = microphone !== null;
    this.lengthMs = durationS * MS_PER_S; // without padding
    const chunkS = chunkSamples / CAPTURE_RATE_HZ;
    this.#plan = planRun({ durationS, paddingBeforeS, paddingAfterS, chunkS });
    this.mixer.measureFile(sound);
  }

  /** Called by `openFile` only. */
  async connect() {
    await this.listenTo(this.output, this.#options.chunkSamples);
    if (this.microphone) this.#mix(this.microphone);
  }

  /** Mixes another microphone in, where the first was unplugged; the file goes on. @param {MicrophoneOptions} wish */
  async useMicrophone(wish) {
    const microphone = await openMicrophone(wish);
    if (this.#state === "ended") return microphone.close(); // the call ended meanwhile
    const before = this.microphone;
    this.microphone = microphone;
    this.#mix(microphone);
    await before?.close();
  }

  #mix(/** @type {Microphone} */ microphone) {
    this.#options.context.createMediaStreamSource(microphone.stream).connect(this.mixer.microphoneInput);
    for (const type of ["silent", "audible", "ended"]) microphone.on(type, (detail) => this.emit(type, detail));
  }

  /** @override */
  start() {
    const { context, sound, video } = this.#options;
    if (this.#state !== "ready") return;
    this.#state = "running";
    context.resume().catch(() => undefined); // the call was started by a gesture
    this.#startS = context.currentTime;
    this.#player = new AudioBufferSourceNode(context, { buffer: sound });
    this.#player.connect(this.mixer.fileInput);
    this.#player.start(this.#startS + this.#plan.fileStartS);
    super.start();
    if (video) {
      video.muted = true;
      video.currentTime = 0;
    }
  }

  /** Pauses both file and microphone. */
  async pause() {
    this.#isHeld = true;
    this.#options.video?.pause();
    await this.#options.context.suspend();
  }

  async resume() {
    this.#isHeld = false;
    for (const chunk of this.#heldChunks.splice(0)) this.onChunk(chunk);
    await this.#options.context.resume();
  }

  /** Ends early; the rest of the current chunk is delivered. @override */
  async stop() {
    if (this.#state !== "running") return;
    this.#state = "ended";
    this.#player?.stop();
    this.#options.video?.pause();
    await super.stop();
  }

  /** @override */
  async close() {
    await this.microphone?.close();
    await this.stop();
    this.#state = "ended";
    super.close();
    this.mixer.close();
    const { context } = this.#options;
    if (context.state !== "closed") await context.close();
  }

  /** @param {CaptureChunk} chunk @override @protected */
  onChunk(chunk) {
    if (this.#isHeld) return void this.#heldChunks.push(chunk);
    if (this.#chunkCount >= this.#plan.chunkCount) return;
    this.#chunkCount += 1;
    this.emit("chunk", chunk);
    if (this.#chunkCount < this.#plan.chunkCount || this.#state !== "running") return;
    this.#state = "ended";
    this.#options.video?.pause();
    this.emit("ended", null);
  }

  /** @param {CaptureLevel} level @override @protected */
  onLevel(level) {
    this.emit("level", level);
    if (this.#state !== "running") return;
    const elapsedS = this.#options.context.currentTime - this.#startS;
    const fileTimeS = elapsedS - this.#plan.fileStartS;
    this.emit("progress", { elapsedS, totalS: this.#plan.totalS });
    this.#followVideo(fileTimeS);
    const dueS = this.#frameIndex + FRAME_INSTANT_S;
    if (dueS >= this.#options.sound.duration || fileTimeS < dueS) return;
    this.emit("frame-due", null);
    this.#frameIndex += 1;
  }

  /** Keeps the video in sync with the audio. @param {number} fileTimeS */
  #followVideo(fileTimeS) {
    const { video, sound } = this.#options;
    if (!video || this.#isHeld) return; // levels from before the pause may still arrive
    if (fileTimeS < 0 || fileTimeS >= sound.duration) {
      if (!video.paused) video.pause();
      return;
    }
    if (video.paused) video.play().catch(() => undefined); // the next level tries again
    if (Math.abs(video.currentTime - fileTimeS) > MAX_VIDEO_DRIFT_S) video.currentTime = fileTimeS;
  }
}

/**
 * Opens a file in a context of its own, with the microphone where it is wanted; all of it is closed if a part fails.
 * The microphone has another context, which stays active while a pause suspends the file's.
 * @param {Omit<FileSourceOptions, "context" | "mixer" | "microphone">} options
 * @param {MixMode} mode
 * @param {MicrophoneOptions} wish
 */
async function openFile(options, mode, wish) {
  const context = new AudioContext({ sampleRate: CAPTURE_RATE_HZ });
  /** @type {Microphone | null} */ let microphone = null;
  try {
    if (mode !== "file") microphone = await openMicrophone(wish);
    const mixer = new MixerController(context, mode);
    const source = new FileSource({ ...options, context, mixer, microphone });
    await source.connect();
    return source;
  } catch (error) {
    await microphone?.close();
    await context.close();
    throw error;
  }
}

// An audio file as the user's voice, alone or mixed with the microphone.

export async function openSoundFile(/** @type {SoundFileOptions} */ { hasMicrophone, microphone, onProgress, ...options }) {
  const source = await openFile(options, hasMicrophone ? "both" : "file", microphone);
  if (onProgress) source.on("progress", onProgress);
  return source;
}

// A sentence spoken on the user's behalf by the server's text-to-speech.

const SPEECH_TIMEOUT_MS = 8_000;
const SENTENCE_TRIM_DB = 5; // the mixer makes a file quieter next to a microphone; a sentence is brought back to its level alone

/** @param {string} sentence @returns {Promise<AudioBuffer>} at 16 kHz @throws {Error} no speech could be generated */
async function speechOf(sentence) {
  const answer = await fetch("/v1/audio/speech", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model: "default", voice: "default", input: sentence, response_format: "wav" }),
    signal: AbortSignal.timeout(SPEECH_TIMEOUT_MS),
  });
  if (!answer.ok) throw new Error(`The sentence could not be spoken (${answer.status}).`);
  return decodeSound(await answer.blob());
}

/**
 * Plays a sentence, followed by the microphone, or by silence if there is none.
 * @param {string} sentence
 * @param {MicrophoneOptions} microphone
 * @returns {Promise<FileSource>}
 * @throws {Error} no speech could be generated
 */
export async function openSentence(sentence, microphone) {
  const { chunkSamples } = microphone;
  const options = { sound: await speechOf(sentence), microphone, chunkSamples, paddingBeforeS: 0, paddingAfterS: Infinity };
  const source = await openSoundFile({ ...options, hasMicrophone: true }).catch(() =>
    openSoundFile({ ...options, hasMicrophone: false }),
  );
  if (source.mixer.mode === "both") source.mixer.set({ trimFileDb: SENTENCE_TRIM_DB });
  return source;
}

/** In place of a microphone, where the user types. @param {MicrophoneOptions} microphone */
export function openSilence(microphone) {
  const sound = new AudioBuffer({ length: CAPTURE_RATE_HZ, sampleRate: CAPTURE_RATE_HZ });
  const { chunkSamples } = microphone;
  return openSoundFile({ sound, microphone, chunkSamples, paddingBeforeS: 0, paddingAfterS: Infinity, hasMicrophone: false });
}

const METADATA_LIMIT_MS = 15_000;
const FAR_S = 1e7; // Beyond any video: files of recorders reveal their duration only after a seek to the end

/** @param {HTMLVideoElement} video @param {string} url @returns {Promise<number>} seconds */
export async function showVideo(video, url) {
  const known = videoEvent(video, "loadeddata", METADATA_LIMIT_MS);
  video.srcObject = null;
  video.muted = true;
  video.preload = "auto";
  video.src = url;
  await known;
  if (!Number.isFinite(video.duration)) {
    const sought = videoEvent(video, "seeked", METADATA_LIMIT_MS);
    video.currentTime = FAR_S;
    await sought;
    video.currentTime = 0;
  }
  return video.duration;
}

/** @param {File} file @param {HTMLVideoElement} video shows it afterwards @throws {Error}  */
export async function readVideoFile(file, video) {
  if (file.size === 0) throw new CodedError("empty");
  const url = URL.createObjectURL(file);
  try {
    const durationS = await showVideo(video, url);
    if (durationS > VIDEO_MAX_S) throw new CodedError("too_long");
    const { videoWidth: widthPx, videoHeight: heightPx } = video;
    if (widthPx === 0) throw new CodedError("no_picture");
    const sound = await decodeSound(file, durationS);
    return { name: file.name, url, durationS, widthPx, heightPx, sound, lufs: lufsOf(sound) };
  } catch (error) {
    URL.revokeObjectURL(url);
    video.removeAttribute("src");
    video.load();
    throw error;
  }
}

// Opens a video file as source: its picture, and the audio of file, microphone or both.

export async function openVideoSource(/** @type {VideoSourceOptions} */ { mix, microphone, ...options }) {
  const source = await openFile(options, mix.mode, microphone);
  source.mixer.set(mix);
  return source;
}

// The mixer outside a call: measuring the voice and previewing the mix.

const MEASURE_S = 3;
const PREVIEW_MAX_S = 30;
const BENCH_CHUNK_SAMPLES = CAPTURE_RATE_HZ / 10;

/** Used once: open, measure or record and play, close. */
export class MixerBench {
  #source;
  /** Ends the recording under way. */
  finish = () => {};
  /** @type {Promise<Float32Array>} */ #recorded = Promise.resolve(new Float32Array(0));
  /** @type {AudioBufferSourceNode | null} */ #player = null;

  constructor(/** @type {FileSource} */ source) {
    this.#source = source;
    this.mixer = source.mixer;
  }

  /** The microphone is open where the mode needs it. @param {BenchOptions} options */
  static async open({ mix, sound, microphone }) {
    const silence = new AudioBuffer({ length: 1, sampleRate: CAPTURE_RATE_HZ });
    const run = { paddingBeforeS: 0, paddingAfterS: Infinity, chunkSamples: BENCH_CHUNK_SAMPLES };
    const source = await openFile({ sound: sound ?? silence, ...run }, mix.mode, microphone);
    source.mixer.set(mix);
    return new MixerBench(source);
  }

  /** Measures three seconds of the voice, before the mixer's gain. @returns {Promise<number>} LUFS; -Infinity if nothing was detected */
  async measure() {
    const { microphone } = this.#source;
    return microphone ? measureLufs([await this.#record(microphone, MEASURE_S)], CAPTURE_RATE_HZ) : -Infinity;
  }

  /** Records the mix until `finish` is called, at most 30 s. @returns {Promise<number>} seconds */
  async record() {
    const samples = await this.#record(this.#source, PREVIEW_MAX_S);
    await this.#source.microphone?.close();
    return samples.length / CAPTURE_RATE_HZ;
  }

  #record(/** @type {Capture} */ source, /** @type {number} */ lengthS) {
    const recording = recordFrom(source, lengthS * CAPTURE_RATE_HZ);
    const ended = new Promise((/** @type {(value: void) => void} */ resolve) => (this.finish = resolve));
    this.#recorded = Promise.race([recording.full, ended]).then(recording.finish);
    return this.#recorded;
  }

  /** Plays the recording at the monitor's volume; resolves at its end. */
  async play() {
    this.stopPlaying();
    const samples = /** @type {Float32Array<ArrayBuffer>} */ (await this.#recorded);
    if (samples.length === 0) return;
    const buffer = new AudioBuffer({ length: samples.length, sampleRate: CAPTURE_RATE_HZ });
    buffer.copyToChannel(samples, 0);
    const player = new AudioBufferSourceNode(this.mixer.monitor.context, { buffer });
    player.connect(this.mixer.monitor);
    player.start();
    this.#player = player;
    await new Promise((resolve) => player.addEventListener("ended", resolve, { once: true }));
  }

  stopPlaying() {
    this.#player?.stop();
    this.#player = null;
  }

  async close() {
    this.finish();
    this.stopPlaying();
    await this.#recorded;
    await this.#source.close();
  }
}
