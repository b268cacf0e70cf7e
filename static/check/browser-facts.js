// @ts-check
/**
 * What the browser can do, and what the pages miss where it cannot. Pure.
 */

import { problemResult } from "./results.js";

/** What conversations cannot do without, and what makes them better. */
export const ABILITIES = /** @type {const} */ ([
  { id: "microphone_access", isNeeded: true },
  { id: "audio_worklet", isNeeded: true },
  { id: "web_socket", isNeeded: true },
  { id: "web_assembly", isNeeded: false },
  { id: "media_recorder", isNeeded: false },
  { id: "output_choice", isNeeded: false },
  { id: "wake_lock", isNeeded: false },
]);

/** @typedef {typeof ABILITIES[number]["id"]} AbilityId */
/** @typedef {{isSecure: boolean, abilities: Record<AbilityId, boolean>}} BrowserAbilities */

/**
 * @param {typeof globalThis} scope the window
 * @returns {BrowserAbilities}
 */
export function browserAbilities(scope) {
  return {
    isSecure: scope.isSecureContext !== false,
    abilities: {
      microphone_access: typeof scope.navigator?.mediaDevices?.getUserMedia === "function",
      audio_worklet: "AudioWorkletNode" in scope,
      web_socket: "WebSocket" in scope,
      web_assembly: "WebAssembly" in scope,
      media_recorder: "MediaRecorder" in scope,
      output_choice: "AudioContext" in scope && "setSinkId" in scope.AudioContext.prototype,
      wake_lock: scope.navigator !== undefined && "wakeLock" in scope.navigator,
    },
  };
}

/**
 * @param {BrowserAbilities} found
 * @returns {import("./results.js").Result}
 */
export function browserResult({ isSecure, abilities }) {
  const facts = { secure: isSecure, ...abilities };
  if (!isSecure) return problemResult("insecure_context", { facts });
  if (ABILITIES.some(({ id, isNeeded }) => isNeeded && !abilities[id])) return problemResult("unsupported", { facts });
  if (!abilities.media_recorder || !abilities.web_assembly) {
    return { state: "caution", text: { key: "check.browser_limited" }, facts };
  }
  return { state: "good", text: { key: "check.browser_good" }, facts };
}
