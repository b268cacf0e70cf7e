// @ts-check
/**
 * The speaker's card: a melody from left and right, and the question whether it was heard.
 */

import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { byId, find, on } from "../shared/dom.js";
import { untilRunning } from "../duplex/lib/audio-context.js";
import { problemResult } from "./results.js";
import { playMelody } from "./test-tone.js";

/** @typedef {import("./results.js").Results} Results */
/** `setSinkId` is not in every browser. @typedef {AudioContext & {setSinkId?: (id: string) => Promise<void>}} SinkContext */

/** No sound card, or a browser that waits for a gesture. */
const START_LIMIT_MS = 3_000;

/** @param {string} speakerId */
async function openContext(speakerId) {
  const context = /** @type {SinkContext} */ (new AudioContext());
  if (speakerId && context.setSinkId) await context.setSinkId(speakerId);
  await context.resume();
  await untilRunning(context, AbortSignal.timeout(START_LIMIT_MS));
  return context;
}

/**
 * @param {Results} results
 * @returns {{start: () => Promise<void>, speakerId: () => string}}
 */
export function mountSpeakerCheck(results) {
  const play = byId("speaker-play", HTMLButtonElement);
  const question = byId("speaker-question", HTMLElement);
  const sides = find(byId("speaker", HTMLElement), ".sides", HTMLElement);
  const devices = mountAudioDeviceSelector(byId("speaker-devices", HTMLElement), { prefix: "check", kinds: ["speaker"] });
  let facts = {};

  const listen = async () => {
    play.disabled = true;
    results.set("speaker", { state: "running", text: { key: "check.speaker_playing" } });
    /** @type {AudioContext | null} */
    let context = null;
    try {
      context = await openContext(devices.speakerId);
      facts = {
        output_hz: context.sampleRate,
        output_latency_ms: Math.round((context.outputLatency || context.baseLatency || 0) * 1_000),
      };
      await playMelody(context, (side) => {
        sides.dataset.side = side;
      });
      question.hidden = false;
      results.set("speaker", { state: "running", text: { key: "check.speaker_asked" }, facts });
      byId("speaker-yes", HTMLButtonElement).focus();
    } catch (error) {
      const detail = error instanceof Error ? error.message : "";
      results.set("speaker", problemResult("no_sound_output", { detail }));
    } finally {
      delete sides.dataset.side;
      play.disabled = false;
      await context?.close();
    }
  };
  on(play, "click", () => void listen());
  on(byId("speaker-yes", HTMLButtonElement), "click", () => {
    results.set("speaker", { state: "good", text: { key: "check.speaker_good" }, facts });
  });
  on(byId("speaker-no", HTMLButtonElement), "click", () => {
    results.set("speaker", {
      state: "bad",
      text: { key: "check.speaker_unheard" },
      next: { key: "check.speaker_unheard_next" },
      facts,
    });
  });
  return { start: listen, speakerId: () => devices.speakerId };
}
