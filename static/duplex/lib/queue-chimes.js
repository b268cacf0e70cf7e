/** Queue countdown, which never jumps back, and chimes. Pure: the page opens the audio device. */

import { formatClock, formatNumber, t, tn } from "../../shared/texts.js";

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

/** What the server last said.
 * @typedef {Object} QueueReport
 * @property {number} etaS Estimated wait, s.
 * @property {number} position 1 is next.
 * @property {number} queueLength
 */

/** @typedef {{endsAtMs: number, position: number, queueLength: number}} CountdownState `endsAtMs`: the shown value is zero */
/** @typedef {ReturnType<typeof countdownView>} CountdownView */

const TICK_MS = 1_000;
const MS_PER_S = 1_000;

/** @param {CountdownState | null} before @param {QueueReport} report @param {number} nowMs @returns {CountdownState} */
export function countdownAfter(before, report, nowMs) {
  const { position, queueLength } = report;
  const askedMs = nowMs + Math.max(0, report.etaS) * MS_PER_S;
  const mayRise = before === null || before.position !== position;
  const endsAtMs = mayRise ? askedMs : Math.min(before.endsAtMs, askedMs);
  return { endsAtMs, position, queueLength };
}

export function countdownView(/** @type {CountdownState} */ state, /** @type {number} */ nowMs) {
  const leftMs = state.endsAtMs - nowMs;
  const { position, queueLength } = state;
  return {
    shownS: Math.max(0, Math.ceil(leftMs / MS_PER_S)), // 0 in overtime
    isOvertime: leftMs < 0, // longer than estimated
    overtimeS: Math.max(0, Math.floor(-leftMs / MS_PER_S)), // since the estimated end
    position,
    queueLength,
  };
}

/** @param {(view: CountdownView) => void} onRender @param {() => number} [nowMs] a steady clock */
export function createQueueCountdown(onRender, nowMs = () => performance.now()) {
  /** @type {CountdownState | null} */ let state = null;
  /** @type {ReturnType<typeof setInterval> | undefined} */ let timer;

  function render() {
    if (state) onRender(countdownView(state, nowMs()));
  }

  return {
    update(/** @type {QueueReport} */ report) {
      state = countdownAfter(state, report, nowMs());
      timer ??= setInterval(render, TICK_MS);
      render();
    },
    stop() {
      clearInterval(timer);
      timer = undefined;
      state = null;
    },
  };
}

export function placeText(/** @type {CountdownView} */ { position, queueLength }) {
  if (position === 1) return t("queue.next");
  return t("queue.place", { position: formatNumber(position), length: formatNumber(Math.max(position, queueLength)) });
}

export function waitText(/** @type {CountdownView} */ { shownS, isOvertime, overtimeS }) {
  if (isOvertime) return t("queue.overtime", { time: formatClock(overtimeS) });
  return shownS < 60 ? tn("queue.seconds", shownS) : t("queue.wait", { time: formatClock(shownS) });
}
