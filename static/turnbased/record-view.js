// @ts-check
/** Records the voice, and what is seen of it: level, time, how to end it. */

import { openMicrophone } from "../duplex/lib/microphone.js";
import { mountPainter, themeColours } from "../shared/canvas-tools.js";
import { find, setText } from "../shared/dom.js";
import { Emitter } from "../shared/emitter.js";
import { formatClock } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { html, iconButton, mountView } from "../shared/lit.js";
import { joinChunks, levelShare } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";

/** @import { Microphone, MicrophoneError } from "../duplex/lib/microphone.js" */

/** @typedef {ReturnType<typeof mountRecordView>} RecordView */

const BAR_PX = 3;
const GAP_PX = 2;
const MOST_BARS = 600;

/** @param {HTMLElement} el shown while it records @param {{cancel: () => void, done: () => void}} actions */
export function mountRecordView(el, { cancel, done }) {
  /** @type {number[]} */
  let bars = [];
  let isSilent = false;
  el.classList.add("record-panel");
  const draw = mountView(
    el,
    () =>
      html`<div class="record-line">
          ${iconButton("trash", t("chat.record_cancel"), cancel, { style: "" })}<span class="record-dot" aria-hidden="true"></span
          ><span class="number record-time" role="timer"></span
          ><canvas class="record-wave" aria-hidden="true"></canvas>${iconButton("check", t("chat.record_end"), done, {
            style: "button-primary",
          })}
        </div>
        <p class="small soft record-hint" role="status">${t(isSilent ? "chat.record_silent" : "chat.record_hint")}</p>`,
  );
  const time = find(el, ".record-time", HTMLElement);
  const colours = themeColours(el);
  const painter = mountPainter(find(el, "canvas", HTMLCanvasElement), (ctx, width, height) => {
    const count = Math.floor(width / (BAR_PX + GAP_PX));
    ctx.fillStyle = colours.css(isSilent ? "caution" : "listen");
    bars.slice(-count).forEach((share, index) => {
      const length = Math.max(2, share * height);
      ctx.fillRect(index * (BAR_PX + GAP_PX), (height - length) / 2, BAR_PX, length);
    });
  });
  return {
    begin() {
      bars = [];
      isSilent = false;
      setText(time, formatClock(0));
      draw();
    },
    /** @param {number} rms @param {number} lengthS @param {number} maxS */
    add(rms, lengthS, maxS) {
      bars = [...bars, levelShare(rms)].slice(-MOST_BARS);
      setText(time, t("chat.record_time", { now: formatClock(lengthS), most: formatClock(maxS) }));
      painter.request();
    },
    /** @param {boolean} isNowSilent */
    warn(isNowSilent) {
      isSilent = isNowSilent;
      draw();
    },
  };
}

// Records one sound from the microphone at 16 kHz, up to a limit.

const RATE_HZ = LIMITS.INPUT_SAMPLE_RATE_HZ;
const CHUNK_SAMPLES = RATE_HZ / 10;

/** @typedef {{level: {rms: number}, silent: null, audible: null, limit: null, ended: {code: string}}} RecorderEvents */

/** @extends {Emitter<RecorderEvents>} */
export class SoundRecorder extends Emitter {
  #microphone;
  #maxSamples;
  /** @type {Float32Array[]} */
  #chunks = [];
  #lengthSamples = 0;

  /** @param {Microphone} microphone @param {number} maxS */
  constructor(microphone, maxS) {
    super();
    this.#microphone = microphone;
    this.#maxSamples = Math.floor(maxS * RATE_HZ);
    microphone.addEventListener("chunk", (event) => this.#keep(detail(event).audio));
    microphone.addEventListener("level", (event) => this.emit("level", { rms: detail(event).rms }));
    microphone.addEventListener("silent", () => this.emit("silent", null));
    microphone.addEventListener("audible", () => this.emit("audible", null));
    microphone.addEventListener("ended", (event) => this.emit("ended", { code: detail(event).code }));
    microphone.start();
  }

  get lengthS() {
    return this.#lengthSamples / RATE_HZ;
  }

  /** Ends it and lets the device go. @returns {Promise<Float32Array<ArrayBuffer>>} mono, 16 kHz */
  async finish() {
    await this.#microphone.stop();
    await this.#microphone.close();
    return joinChunks(this.#chunks).subarray(0, this.#maxSamples);
  }

  /** Ends it; what was recorded is gone. */
  async cancel() {
    this.#chunks = [];
    await this.#microphone.close();
  }

  /** @param {Float32Array} audio */
  #keep(audio) {
    if (this.#lengthSamples >= this.#maxSamples) return;
    this.#chunks.push(audio.slice());
    this.#lengthSamples += audio.length;
    this.#microphone.recycle(audio);
    if (this.#lengthSamples >= this.#maxSamples) this.emit("limit", null);
  }
}

/** The microphone's events carry what its own file says. @param {Event} event */
function detail(event) {
  return /** @type {CustomEvent} */ (event).detail;
}

/** @param {{maxS: number, deviceId?: string}} options @returns {Promise<SoundRecorder>} @throws {MicrophoneError} */
export async function startRecording({ maxS, deviceId }) {
  return new SoundRecorder(await openMicrophone({ deviceId, chunkSamples: CHUNK_SAMPLES }), maxS);
}
