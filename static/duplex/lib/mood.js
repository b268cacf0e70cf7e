// @ts-check
/**
 * What a live call is doing, in the one word that orb, state line, title and buttons share. Pure.
 */

/** @typedef {import("./session-state.js").SessionState} SessionState */

/**
 * @typedef {"idle" | "connecting" | "waiting" | "preparing" | "listening" | "thinking" | "speaking"
 *   | "interrupted" | "pausing" | "paused" | "stopping" | "ended"} Mood
 */

/** Which colour token each mood wears, without the dashes. */
export const MOOD_COLOURS = Object.freeze({
  idle: "accent",
  connecting: "wait",
  waiting: "wait",
  preparing: "wait",
  listening: "listen",
  thinking: "listen",
  speaking: "speak",
  interrupted: "interrupt",
  pausing: "idle",
  paused: "idle",
  stopping: "idle",
  ended: "idle",
});

/** @type {Readonly<Record<import("./session-state.js").Phase, Mood>>} */
const PHASE_MOODS = Object.freeze({
  idle: "idle",
  connecting: "connecting",
  queued: "waiting",
  preparing: "preparing",
  running: "listening",
  pausing: "pausing",
  paused: "paused",
  stopping: "stopping",
  ended: "ended",
});

/**
 * @param {Pick<SessionState, "phase" | "activity">} state
 * @returns {Mood}
 */
export function moodOf({ phase, activity }) {
  if (phase === "running" && activity !== "none") return activity;
  return PHASE_MOODS[phase];
}

/**
 * Which buttons make sense now.
 *
 * @param {Pick<SessionState, "phase" | "activity">} state
 */
export function controlsFor(state) {
  const { phase } = state;
  const isTalk = phase === "running" || phase === "pausing" || phase === "paused";
  return {
    canStart: phase === "idle" || phase === "ended",
    canStop: phase === "connecting" || phase === "queued" || phase === "preparing" || isTalk,
    canPause: phase === "running",
    canResume: phase === "pausing" || phase === "paused",
    canInterrupt: phase === "running" && state.activity === "speaking",
    isTalk,
  };
}
