// @ts-check
/**
 * What a live call is doing, in the one word that orb, state line, title and buttons share. Pure.
 */

/** @typedef {import("./duplex-types.js").SessionState} SessionState */

/**
 * @typedef {"idle" | "connecting" | "waiting" | "preparing" | "listening" | "thinking" | "speaking"
 *   | "interrupted" | "pausing" | "paused" | "stopping" | "ended"} CallState
 */

/** Which colour token each callState wears, without the dashes. */
export const STATE_COLOURS = Object.freeze({
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

/** @type {Readonly<Record<import("./session-phases.js").Phase, CallState>>} */
const PHASE_STATES = Object.freeze({
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
 * @returns {CallState}
 */
export function callStateOf({ phase, activity }) {
  if (phase === "running" && activity !== "none") return activity;
  return PHASE_STATES[phase];
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
