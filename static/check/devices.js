/** Measurements of the device check: microphone, melody, network. Device. */

import { CAPTURE_RATE_HZ } from "../duplex/lib/capture-format.js";
import { openMicrophone, recordFrom } from "../duplex/lib/capture.js";
import { codeOf, reasonOf } from "../shared/texts.js";
import { networkOf } from "../shared/network.js";
import { newSessionId, openLiveSocket } from "../shared/live-socket.js";
import { medianOf } from "../shared/async.js";
import { createLevelJudge, microphoneResult, problemResult } from "./results.js";

/** @import { Microphone } from "../duplex/lib/capture.js" */
/** @import { SocketFactory } from "../shared/live-socket.js" */
/** @import { LevelView, Results } from "./results.js" */

const CHUNK_S = 0.1;
const QUIETEST_DB = -99; // shown instead of minus infinity

function factsOf(/** @type {Microphone} */ microphone) {
  const settings = microphone.stream.getAudioTracks()[0]?.getSettings() ?? {};
  return {
    device: microphone.label,
    context_hz: microphone.context.sampleRate,
    device_hz: settings.sampleRate ?? "?",
    echo_cancellation: String(settings.echoCancellation ?? "?"),
    noise_suppression: String(settings.noiseSuppression ?? "?"),
  };
}

/**
 * @param {Results} results
 * @param {{onLevel: (view: LevelView) => void, onChange: () => void}} listeners `onChange`: the microphone was opened or closed
 */
export function createMicrophoneSession(results, { onLevel, onChange }) {
  /** @type {Microphone | null} */ let microphone = null;
  let opening = 0;

  const close = async () => {
    opening += 1;
    const open = microphone;
    microphone = null;
    onChange();
    await open?.close();
  };
  const fail = async (/** @type {unknown} */ problem) => {
    await close();
    results.set("microphone", problemResult(codeOf(problem), { detail: reasonOf(problem) }));
  };
  const listen = (/** @type {Microphone} */ heard) => {
    const judge = createLevelJudge();
    const sinceMs = performance.now();
    heard.on("ended", (problem) => void fail(problem));
    heard.on("level", (level) => {
      const nowMs = performance.now();
      const view = judge.measure(level, nowMs);
      onLevel(view);
      const facts = { ...factsOf(heard), peak_db: Math.max(QUIETEST_DB, Math.round(view.peakDb)) };
      const result = microphoneResult(results.get("microphone"), view, nowMs - sinceMs, facts);
      if (result) results.set("microphone", result);
    });
  };
  return {
    get microphone() {
      return microphone;
    },
    close,
    /** @param {string} deviceId "" is the system default */
    async open(deviceId) {
      await close();
      const mine = opening;
      results.set("microphone", { state: "running", text: { key: "check.mic_opening" } });
      try {
        const opened = await openMicrophone({ deviceId, chunkSamples: CHUNK_S * CAPTURE_RATE_HZ });
        if (mine !== opening) return void opened.close();
        microphone = opened;
      } catch (error) {
        if (mine === opening) await fail(error);
        return;
      }
      results.set("microphone", { state: "running", text: { key: "check.mic_speak" }, facts: factsOf(microphone) });
      listen(microphone);
      onChange();
    },
  };
}

// Records three seconds of an open microphone.

const CLIP_S = 3;

/**
 * @param {Microphone} microphone
 * @param {AbortSignal} signal ends it early
 * @returns {Promise<Float32Array>} at 16 kHz; shorter if it ended early
 */
export function takeClip(microphone, signal) {
  return new Promise((resolve) => {
    const end = () => void recording.finish().then(resolve);
    const recording = recordFrom(microphone, CLIP_S * CAPTURE_RATE_HZ, end);
    signal.addEventListener("abort", end, { once: true });
  });
}

// Network checks: round trips and WebSockets.

const TRIES = 10;
const TRY_LIMIT_MS = 5_000;

/**
 * @typedef {Object} RoundTrips
 * @property {number} medianMs
 * @property {number} worstMs
 * @property {number} failed requests without a response
 */

/** @param {{call?: () => Promise<unknown>, now?: () => number, onStep?: (done: number, total: number) => void}} [options] */
export async function measureRoundTrips({ call = callHealth, now = () => performance.now(), onStep } = {}) {
  /** @type {number[]} */ const times = [];
  let failed = 0;
  for (let index = 0; index < TRIES; index += 1) {
    const startMs = now();
    try {
      await call();
      times.push(now() - startMs);
    } catch {
      failed += 1;
    }
    onStep?.(index + 1, TRIES);
  }
  return { medianMs: medianOf(times), worstMs: Math.max(...times), failed };
}

async function callHealth() {
  const answer = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(TRY_LIMIT_MS) });
  if (!answer.ok) throw new Error(`/health answered ${answer.status}.`);
  await answer.arrayBuffer();
}

/**
 * Opens and closes a chat socket; it sends nothing, so it is not queued.
 * @param {{url?: string, factory?: SocketFactory, now?: () => number}} [options]
 * @returns {Promise<number | null>} ms until it was open; null if it failed
 */
export function measureSocket({ url, factory, now = () => performance.now() } = {}) {
  return new Promise((resolve) => {
    const startMs = now();
    const finish = (/** @type {number | null} */ openedMs) => {
      clearTimeout(timer);
      socket.close();
      resolve(openedMs);
    };
    const timer = setTimeout(() => finish(null), TRY_LIMIT_MS);
    const network = networkOf("streaming", "");
    const socket = openLiveSocket(
      url ?? network.url(newSessionId("check")),
      { onOpen: () => finish(now() - startMs), onMessage: () => {}, onClosed: () => finish(null) },
      factory ?? network.socketFactory,
    );
  });
}

// A short friendly melody, first on the left, then on the right.

const LEFT_HZ = [523.25, 659.25, 783.99]; // c major, an octave apart on the two sides. Source: equal temperament, A4 = 440 Hz.
const RIGHT_HZ = [783.99, 659.25, 1046.5];
const NOTE_S = 0.32;
const STEP_S = 0.24;
const PAUSE_S = 0.25;
const LEAD_S = 0.08;
const ATTACK_S = 0.02;
const PEAK_GAIN = 0.22;
const NEARLY_NOTHING = 0.0001; // exponential ramps cannot reach 0

/** @param {AudioContext} context @param {number} frequencyHz @param {number} pan -1 left, 1 right @param {number} startS */
function playNote(context, frequencyHz, pan, startS) {
  const tone = new OscillatorNode(context, { type: "sine", frequency: frequencyHz });
  const gain = new GainNode(context, { gain: 0 });
  gain.gain.setValueAtTime(NEARLY_NOTHING, startS);
  gain.gain.exponentialRampToValueAtTime(PEAK_GAIN, startS + ATTACK_S);
  gain.gain.exponentialRampToValueAtTime(NEARLY_NOTHING, startS + NOTE_S);
  tone.connect(gain).connect(new StereoPannerNode(context, { pan })).connect(context.destination);
  tone.start(startS);
  tone.stop(startS + NOTE_S);
  return tone;
}

export async function playMelody(/** @type {AudioContext} */ context, /** @type {(side: "left" | "right") => void} */ onSide) {
  const startS = context.currentTime + LEAD_S;
  const rightS = startS + LEFT_HZ.length * STEP_S + PAUSE_S;
  const left = LEFT_HZ.map((hz, index) => playNote(context, hz, -1, startS + index * STEP_S));
  const right = RIGHT_HZ.map((hz, index) => playNote(context, hz, 1, rightS + index * STEP_S));
  onSide("left");
  await ended(left.at(-1));
  onSide("right");
  await ended(right.at(-1));
}

/** @param {OscillatorNode | undefined} tone @returns {Promise<void>} */
function ended(tone) {
  return new Promise((resolve) => {
    if (tone) tone.onended = () => resolve();
    else resolve();
  });
}
