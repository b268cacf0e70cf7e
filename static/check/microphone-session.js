// @ts-check
/**
 * One microphone at a time, opened, judged and let go; what it finds goes to the results. Device.
 */

import { CAPTURE_RATE_HZ } from "../duplex/lib/capture-format.js";
import { openMicrophone } from "../duplex/lib/microphone.js";
import { createLevelJudge } from "./level-judge.js";
import { microphoneResult } from "./microphone-result.js";
import { problemResult } from "./results.js";

/** @typedef {import("../duplex/lib/microphone.js").Microphone} Microphone */
/** @typedef {import("./level-judge.js").LevelView} LevelView */

const CHUNK_S = 0.1;
const QUIETEST_DB = -99; // shown in place of minus infinity

/** @param {unknown} error @returns {string} */
function codeOf(error) {
  return error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : "unsupported";
}

/** @param {Microphone} microphone */
function factsOf(microphone) {
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
 * @param {import("./results.js").Results} results
 * @param {{onLevel: (view: LevelView) => void, onChange: () => void}} listeners `onChange`: opened or closed
 */
export function createMicrophoneSession(results, { onLevel, onChange }) {
  /** @type {Microphone | null} */
  let microphone = null;
  let opening = 0;

  const close = async () => {
    opening += 1;
    const open = microphone;
    microphone = null;
    onChange();
    await open?.close();
  };
  /** @param {unknown} problem */
  const fail = async (problem) => {
    const detail = problem instanceof Error && problem.cause instanceof Error ? problem.cause.message : "";
    await close();
    results.set("microphone", problemResult(codeOf(problem), { detail }));
  };
  /** @param {Microphone} heard */
  const listen = (heard) => {
    const judge = createLevelJudge();
    const sinceMs = performance.now();
    heard.addEventListener("ended", (event) => void fail(/** @type {CustomEvent} */ (event).detail));
    heard.addEventListener("level", (event) => {
      const nowMs = performance.now();
      const view = judge.measure(/** @type {CustomEvent} */ (event).detail, nowMs);
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
    /** @param {string} deviceId "" is the system's own choice */
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
