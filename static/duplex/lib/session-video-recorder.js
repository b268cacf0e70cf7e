/**
 * Records video and audio of a session in the browser: user left, model right. Device.
 * Memory bound: 512 MB of encoded data in parts of one second; then recording ends with the event `full`.
 */

import { pickFormat } from "./session-recorder.js";

/** @import { VideoRecorderOptions } from "../../../types/devices.js" */
/** @import { Format } from "./session-recorder.js" */

const RECORDING_MAX_BYTES = 512 * 1024 * 1024;
const TIMESLICE_MS = 1_000;
const FRAME_RATE_HZ = 25;
const MS_PER_S = 1_000;
const MUTE_RAMP_S = 0.01;

/** @param {string} mimeType */
export const isSupported = (mimeType) => typeof MediaRecorder !== "undefined" && MediaRecorder.isTypeSupported(mimeType);

/**
 * Brings the sound of another audio context here.
 * @param {AudioNode | null | undefined} node
 * @param {AudioNode} target
 * @returns {() => void} disconnects it
 */
function bridge(node, target) {
  if (!node) return () => {};
  const tap = /** @type {AudioContext} */ (node.context).createMediaStreamDestination();
  node.connect(tap);
  const input = /** @type {AudioContext} */ (target.context).createMediaStreamSource(tap.stream);
  input.connect(target);
  return () => {
    input.disconnect();
    if (node.context.state !== "closed") node.disconnect(tap);
  };
}

/** Records video and audio into one file. Event `full` at the bound, `failed` if the browser stops. */
export class SessionVideoRecorder extends EventTarget {
  /** @type {MediaRecorder | null} */ #recorder = null;
  /** @type {Blob[]} */ #parts = [];
  #bytes = 0;
  /** @type {Format | null} */ format = null;
  /** @type {(() => void)[]} */ #closers = [];
  /** The user's channel, silent while muted. @type {GainNode | null} */ #user = null;
  #offUser = () => {};

  get isRecording() {
    return this.#recorder?.state === "recording";
  }

  /** @param {VideoRecorderOptions} options @returns {Format | null} null: this browser cannot record; `stop` lets all go */
  start(options) {
    const format = pickFormat(isSupported, options.formatId);
    if (format === null) return null;
    this.format = format;
    const tracks = this.#mixSound(options).getAudioTracks();
    if (format.hasPicture) tracks.push(...this.#paintPicture(options).getVideoTracks());
    try {
      const recorder = new MediaRecorder(new MediaStream(tracks), {
        mimeType: format.mimeType,
        videoBitsPerSecond: options.bitrate,
      });
      recorder.ondataavailable = ({ data: part }) => this.#keep(part);
      recorder.onerror = () => this.dispatchEvent(new CustomEvent("failed"));
      recorder.start(TIMESLICE_MS);
      this.#recorder = recorder;
    } catch (error) {
      console.info("No recording:", error); // no encoder is free, for example
      return null;
    }
    return format;
  }

  /** @param {VideoRecorderOptions} options @returns {MediaStream} stereo */
  #mixSound({ user, answer, isMuted }) {
    const context = new AudioContext();
    const merger = new ChannelMergerNode(context, { numberOfInputs: 2 });
    const output = context.createMediaStreamDestination();
    merger.connect(output);
    // Mixed to mono first, since a merger's input uses the first channel only.
    const mono = { channelCount: 1, channelCountMode: /** @type {const} */ ("explicit") };
    this.#user = new GainNode(context, { ...mono, gain: isMuted ? 0 : 1 }); // a ramp from 1 would let a muted user be heard
    this.#user.connect(merger, 0, 0);
    this.connectUser(user);
    const voice = new GainNode(context, mono);
    voice.connect(merger, 0, 1);
    const offAnswer = bridge(answer, voice);
    context.resume().catch(() => undefined); // resumes at the next gesture
    this.#closers.push(
      offAnswer,
      () => this.#offUser(),
      () => context.close(),
    );
    return output.stream;
  }

  /** Records another microphone in the place of the last one. @param {AudioNode | null | undefined} node */
  connectUser(node) {
    this.#offUser();
    if (this.#user) this.#offUser = bridge(node, this.#user);
  }

  setMuted(/** @type {boolean} */ isMuted) {
    this.#user?.gain.setTargetAtTime(isMuted ? 0 : 1, this.#user.context.currentTime, MUTE_RAMP_S);
  }

  #paintPicture(/** @type {VideoRecorderOptions} */ { picture, draw }) {
    const canvas = document.createElement("canvas");
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
    const paint = () => {
      const { videoWidth: widthPx, videoHeight: heightPx } = picture;
      if (widthPx === 0 || heightPx === 0) return;
      if (canvas.width !== widthPx || canvas.height !== heightPx) {
        canvas.width = widthPx;
        canvas.height = heightPx;
      }
      context.drawImage(picture, 0, 0, widthPx, heightPx);
      draw?.(context, widthPx, heightPx);
    };
    paint();
    // A timer, since animation frames stop in a hidden tab.
    const timer = setInterval(paint, MS_PER_S / FRAME_RATE_HZ);
    this.#closers.push(() => clearInterval(timer));
    return canvas.captureStream(FRAME_RATE_HZ);
  }

  #keep(/** @type {Blob} */ part) {
    if (part.size === 0) return;
    this.#parts.push(part);
    this.#bytes += part.size;
    if (this.#bytes < RECORDING_MAX_BYTES || !this.isRecording) return;
    this.stop();
    this.dispatchEvent(new CustomEvent("full"));
  }

  /** @returns {Promise<Blob | null>} the file; null if nothing was recorded */
  async stop() {
    const recorder = this.#recorder;
    if (recorder !== null && recorder.state !== "inactive") {
      const ended = new Promise((resolve) => recorder.addEventListener("stop", resolve, { once: true }));
      recorder.stop();
      await ended;
    }
    for (const close of this.#closers.splice(0)) close();
    if (this.#parts.length === 0) return null;
    return new Blob(this.#parts, { type: this.format?.mimeType.split(";")[0] });
  }
}
