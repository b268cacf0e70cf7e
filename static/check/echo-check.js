// @ts-check
/**
 * The echo's card: chirps are played without and with the browser's echo cancellation.
 */

import { runEchoTest } from "../duplex/lib/echo-test.js";
import { openMicrophone } from "../duplex/lib/microphone.js";
import { untilRunning } from "../duplex/lib/audio-context.js";
import { byId, on } from "../shared/dom.js";
import { echoResult } from "./echo-result.js";
import { problemResult } from "./results.js";

/** `setSinkId` is not in every browser. @typedef {AudioContext & {setSinkId?: (id: string) => Promise<void>}} SinkContext */

const LIMIT_MS = 10_000; // of one measurement; three seconds are usual

/** @param {number} limitMs @returns {Promise<never>} */
function expire(limitMs) {
  return new Promise((_, reject) => {
    setTimeout(() => reject(Object.assign(new Error("The measurement did not end."), { code: "no_sound_output" })), limitMs);
  });
}

/**
 * @param {{micId: string, speakerId: string, echoCancellation: boolean}} wish
 */
async function measure({ micId, speakerId, echoCancellation }) {
  const microphone = await openMicrophone({
    deviceId: micId,
    echoCancellation,
    noiseSuppression: echoCancellation,
    autoGainControl: false,
  });
  try {
    const context = /** @type {SinkContext} */ (microphone.context);
    if (speakerId && context.setSinkId) await context.setSinkId(speakerId);
    await untilRunning(context, AbortSignal.timeout(LIMIT_MS));
    return await Promise.race([runEchoTest(microphone), expire(LIMIT_MS)]);
  } finally {
    await microphone.close();
  }
}

/**
 * @param {import("./results.js").Results} results
 * @param {{micId: () => string, speakerId: () => string, beforeStart: () => Promise<void>}} options
 *   `beforeStart` frees the microphone
 */
export function mountEchoCheck(results, { micId, speakerId, beforeStart }) {
  const start = byId("echo-start", HTMLButtonElement);
  const run = async () => {
    start.disabled = true;
    results.set("echo", { state: "running", text: { key: "check.echo_running" } });
    const devices = { micId: micId(), speakerId: speakerId() };
    try {
      await beforeStart();
      const plain = await measure({ ...devices, echoCancellation: false });
      const cancelled = await measure({ ...devices, echoCancellation: true });
      results.set("echo", echoResult(plain, cancelled));
    } catch (error) {
      const code = error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : "no_sound_output";
      results.set("echo", problemResult(code));
    } finally {
      start.disabled = false;
    }
  };
  on(start, "click", () => void run());
}
