// @ts-check
/**
 * What a half-duplex page shows for a state: the word, the colour, the buttons. Pure.
 */

/** @typedef {import("./half-duplex-state.js").HalfState} HalfState */
/** @typedef {import("./call-state.js").CallState} CallState */

/** @typedef {"idle" | "connecting" | "waiting" | "preparing" | "listening" | "hearing" | "thinking"
 *   | "speaking" | "interrupted" | "settling" | "stopping" | "ended"} HalfCallState
 */

/** @type {Readonly<Partial<Record<HalfState["phase"], HalfCallState>>>} half duplex knows no pause */
const PHASE_STATES = Object.freeze({
  idle: "idle",
  connecting: "connecting",
  queued: "waiting",
  preparing: "preparing",
  stopping: "stopping",
  ended: "ended",
});

/**
 * @param {Pick<HalfState, "phase" | "activity">} state
 * @returns {HalfCallState}
 */
export function halfCallStateOf({ phase, activity }) {
  return phase === "running" && activity !== "none" ? activity : (PHASE_STATES[phase] ?? "listening");
}

/**
 * How the orb, which knows the states of full duplex, is to look.
 *
 * @param {HalfCallState} callState
 * @returns {CallState}
 */
export function orbStateOf(callState) {
  if (callState === "hearing") return "listening";
  return callState === "settling" ? "pausing" : callState;
}

/**
 * Which buttons make sense now.
 *
 * @param {Pick<HalfState, "phase" | "activity">} state
 * @param {boolean} isStarting devices are being opened
 */
export function halfControlsFor({ phase, activity }, isStarting) {
  const isTalk = phase === "running";
  const isOver = phase === "idle" || phase === "ended";
  return {
    canStart: isOver && !isStarting,
    canStop: isStarting || (!isOver && phase !== "stopping"),
    isStopShown: isStarting || !isOver,
    canInterrupt: isTalk && (activity === "thinking" || activity === "speaking"),
    isTalk,
  };
}

/**
 * Turns as `prepare` wants its settings.
 *
 * @param {Record<string, unknown>} values by name of the page's settings
 * @returns {import("../../shared/protocol.js").HalfDuplexConfig}
 */
export function halfConfigOf(values) {
  const number = (/** @type {string} */ name) => Number(values[name]);
  return {
    vad: {
      threshold: number("vad_threshold"),
      min_speech_duration_ms: number("vad_min_speech_duration_ms"),
      min_silence_duration_ms: number("vad_min_silence_duration_ms"),
      speech_pad_ms: number("vad_speech_pad_ms"),
    },
    generation: {
      max_new_tokens: number("max_new_tokens"),
      length_penalty: number("length_penalty"),
      temperature: number("temperature"),
    },
    tts: { enabled: values.has_voice === true },
    session: { timeout_s: number("timeout_s") },
  };
}
