/** Measurements of the device check: network and melody. Device. */

import { networkOf } from "../shared/network.js";
import { newSessionId, openLiveSocket } from "../shared/live-socket.js";
import { medianOf } from "../shared/async.js";

/** @import { SocketFactory } from "../shared/live-socket.js" */

// Network checks: round trips and WebSockets.

const TRIES = 10;
const TRY_LIMIT_MS = 5_000;

/** `failed`: requests without a response @typedef {Awaited<ReturnType<typeof measureRoundTrips>>} RoundTrips */

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

const ended = (/** @type {OscillatorNode | undefined} */ tone) =>
  new Promise((resolve) => void tone?.addEventListener("ended", resolve));
