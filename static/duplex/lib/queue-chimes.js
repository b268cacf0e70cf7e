/** Queue countdown, which never jumps back, and chimes. Pure: the page opens the audio device. */

import { formatClock, formatNumber, MS_PER_S, S_PER_MINUTE, t, tn } from "../../shared/texts.js";

/** @import { QueuePlace } from "../../shared/server-messages.js" */

/** @typedef {{startS: number, pitchHz: number, lengthS: number}} Note */

const C5_HZ = 523.25;
const E5_HZ = 659.26;
const G5_HZ = 783.99;
const C6_HZ = 1_046.5;
const E6_HZ = 1_318.51;
const LOOP_PERIOD_MS = 2_000;
const VOLUME = 0.12;
const ATTACK_S = 0.01;

/** @type {readonly Note[]} */ const NEXT_NOTES = [
  { startS: 0, pitchHz: 880, lengthS: 0.16 },
  { startS: 0.2, pitchHz: 660, lengthS: 0.24 },
];

/** @type {readonly Note[]} */ const TURN_NOTES = [0, 0.7].flatMap((startS) =>
  [C5_HZ, E5_HZ, G5_HZ, C6_HZ].map((pitchHz, index) => ({
    startS: startS + index * 0.13,
    pitchHz,
    lengthS: index === 3 ? 0.3 : 0.15,
  })),
);

/** @type {readonly Note[]} */ const READY_NOTES = [
  { startS: 0, pitchHz: C6_HZ, lengthS: 0.08 },
  { startS: 0.09, pitchHz: E6_HZ, lengthS: 0.12 },
];

/** @param {{makeContext: () => AudioContext, isMuted?: boolean}} options */
export function createQueueChimes({ makeContext, isMuted = false }) {
  /** @type {AudioContext | null} */ let context = null;
  /** @type {ReturnType<typeof setInterval> | undefined} */ let loop;
  let muted = isMuted;

  function ready() {
    try {
      context ??= makeContext();
    } catch {
      return null; // no audio device: the page shows the same as text
    }
    if (context.state === "suspended") context.resume().catch(() => {});
    return context;
  }

  function play(/** @type {readonly Note[]} */ notes) {
    const audio = muted ? null : ready();
    if (audio) for (const note of notes) playNote(audio, note);
  }

  function stopLoop() {
    clearInterval(loop);
    loop = undefined;
  }

  return {
    /** Chimes while the position is 1. @param {number | null} position null leaves the queue */
    setPosition(position) {
      if (position !== 1) return stopLoop();
      if (loop !== undefined) return;
      play(NEXT_NOTES);
      loop = setInterval(() => play(NEXT_NOTES), LOOP_PERIOD_MS);
    },
    /** The user's turn has come. */
    playTurn() {
      stopLoop();
      play(TURN_NOTES);
    },
    playReady: () => play(READY_NOTES),
    setMuted: (/** @type {boolean} */ isMutedNow) => void (muted = isMutedNow),
    isMuted: () => muted,
    /** To be called in a user gesture, so that browsers allow audio later. */
    unlock: () => void ready(),
  };
}

function playNote(/** @type {AudioContext} */ context, /** @type {Note} */ note) {
  const startS = context.currentTime + note.startS;
  const endS = startS + note.lengthS;
  const gain = context.createGain();
  gain.gain.setValueAtTime(0, startS);
  gain.gain.linearRampToValueAtTime(VOLUME, startS + ATTACK_S);
  gain.gain.exponentialRampToValueAtTime(0.0001, endS); // exponential ramps cannot reach zero
  const tone = context.createOscillator();
  tone.type = "sine";
  tone.frequency.value = note.pitchHz;
  tone.connect(gain).connect(context.destination);
  tone.start(startS);
  tone.stop(endS);
}

// The wait as displayed: it never increases without a visible cause.

/** @typedef {QueuePlace & {endsAtMs: number}} Wait `endsAtMs`: the shown value is zero */

/** @param {Wait | null} before @param {QueuePlace} place as the server last said @param {number} nowMs a steady clock @returns {Wait} */
export function waitAfter(before, place, nowMs) {
  const askedMs = nowMs + Math.max(0, place.etaS) * MS_PER_S;
  const mayRise = before === null || before.position !== place.position;
  return { ...place, endsAtMs: mayRise ? askedMs : Math.min(before.endsAtMs, askedMs) };
}

export function placeText(/** @type {QueuePlace} */ { position, queueLength }) {
  if (position === 1) return t("queue.next");
  return t("queue.place", { position: formatNumber(position), length: formatNumber(Math.max(position, queueLength)) });
}

export function waitText(/** @type {Wait} */ { endsAtMs }, /** @type {number} */ nowMs) {
  const leftS = (endsAtMs - nowMs) / MS_PER_S;
  if (leftS < 0) return t("queue.overtime", { time: formatClock(Math.floor(-leftS)) }); // longer than estimated
  const shownS = Math.ceil(leftS);
  return shownS < S_PER_MINUTE ? tn("queue.seconds", shownS) : t("queue.wait", { time: formatClock(shownS) });
}
