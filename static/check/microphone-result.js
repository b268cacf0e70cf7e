// @ts-check
/**
 * What the microphone's loudness so far means for a conversation. Pure.
 */

import { problemResult } from "./results.js";

/** @typedef {import("./results.js").Result} Result */

const ENOUGH_GOOD_MS = 800;
const PATIENCE_MS = 6_000;
const SILENT_KEY = "problem.silent_microphone.title";
/** What is said when no good speech came. @type {Readonly<Record<string, string>>} */
const TROUBLE_KEYS = Object.freeze({ loud: "check.mic_loud", quiet: "check.mic_quiet" });

/**
 * @param {Result} before
 * @param {import("./level-judge.js").LevelView} view
 * @param {number} openMs how long the microphone has been open
 * @param {Result["facts"]} facts
 * @returns {Result | null} null: as before
 */
export function microphoneResult(before, view, openMs, facts) {
  const wasSilent = before.text?.key === SILENT_KEY;
  if (view.word === "silent") return wasSilent ? null : problemResult("silent_microphone", { facts });
  if (view.goodMs >= ENOUGH_GOOD_MS) {
    return before.state === "good" ? null : { state: "good", text: { key: "check.mic_good" }, facts };
  }
  if (wasSilent) return { state: "running", text: { key: "check.mic_speak" }, facts };
  if (before.state !== "running" || openMs <= PATIENCE_MS) return null;
  const key = TROUBLE_KEYS[view.word] ?? "check.mic_unheard";
  return { state: "caution", text: { key }, next: { key: `${key}_next` }, facts };
}
