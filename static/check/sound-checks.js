/** Cards of speaker (melody), echo (chirps), network and browser. */

import { createCapture, openMicrophone, untilRunning } from "../duplex/lib/capture.js";
import { runEchoTest } from "../duplex/lib/measure.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { byId, find, html, icon, mountView, on } from "../shared/lit.js";
import { CodedError, codeOf, t } from "../shared/texts.js";
import { measureRoundTrips, measureSocket, playMelody } from "./devices.js";
import { ABILITIES, browserAbilities, browserResult, echoResult, problemResult, serverResult } from "./results.js";

/** @import { StatusReport } from "../shared/page.js" */
/** @import { Results } from "./results.js" */

/** `setSinkId` is not supported by every browser. @typedef {AudioContext & {setSinkId?: (id: string) => Promise<void>}} SinkContext */

const START_LIMIT_MS = 3_000; // expires without an audio device, or if the browser waits for a gesture

/** @param {string} speakerId */
async function openContext(speakerId) {
  const context = /** @type {SinkContext} */ (new AudioContext());
  if (speakerId && context.setSinkId) await context.setSinkId(speakerId);
  await context.resume();
  await untilRunning(context, AbortSignal.timeout(START_LIMIT_MS));
  return context;
}

/** @param {Results} results @returns {{start: () => Promise<void>, speakerId: () => string}} */
export function mountSpeakerCheck(results) {
  const play = byId("speaker-play", HTMLButtonElement);
  const question = byId("speaker-question", HTMLElement);
  const sides = find(byId("speaker", HTMLElement), ".sides", HTMLElement);
  const devices = mountAudioDeviceSelector(byId("speaker-devices", HTMLElement), { prefix: "check", kinds: ["speaker"] });
  let facts = {};

  const listen = async () => {
    play.disabled = true;
    results.set("speaker", { state: "running", text: { key: "check.speaker_playing" } });
    /** @type {AudioContext | null} */ let context = null;
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

// The echo's card: chirps are played with and without the browser's echo cancellation.

const LIMIT_MS = 10_000; // of one measurement; three seconds are usual

/** @param {{micId: string, speakerId: string, echoCancellation: boolean}} wish */
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
    /** @type {Promise<never>} */ const expired = new Promise((_, reject) => {
      setTimeout(() => reject(new CodedError("no_sound_output")), LIMIT_MS);
    });
    return await Promise.race([runEchoTest(microphone, createCapture), expired]);
  } finally {
    await microphone.close();
  }
}

/**
 * @param {Results} results
 * @param {{micId: () => string, speakerId: () => string, beforeStart: () => Promise<void>}} options
 *   `beforeStart` releases the microphone
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
      results.set("echo", problemResult(codeOf(error, "no_sound_output")));
    } finally {
      start.disabled = false;
    }
  };
  on(start, "click", () => void run());
}

// Cards that need no permission: network and browser.

/** @param {Results} results @param {() => StatusReport | null} latestReport @returns {{run: () => Promise<void>}} */
export function mountServerCheck(results, latestReport) {
  const again = byId("server-again", HTMLButtonElement);
  const progress = byId("server-progress", HTMLProgressElement);
  const run = async () => {
    again.disabled = true;
    results.set("server", { state: "running", text: { key: "check.server_running" } });
    const trips = await measureRoundTrips({
      onStep: (done, total) => {
        progress.max = total;
        progress.value = done;
      },
    });
    const socketMs = Number.isNaN(trips.medianMs) ? null : await measureSocket();
    results.set("server", serverResult(trips, socketMs, latestReport()));
    again.disabled = false;
  };
  on(again, "click", () => void run());
  return { run };
}

/** @param {Results} results */
export function mountBrowserCheck(results) {
  const found = browserAbilities(globalThis);
  const entries = [
    { id: "secure", isThere: found.isSecure, isNeeded: true },
    ...ABILITIES.map(({ id, isNeeded }) => ({ id, isThere: found.abilities[id], isNeeded })),
  ];
  mountView(byId("abilities", HTMLElement), () =>
    entries.map(({ id, isThere, isNeeded }) => {
      const words = t(isThere ? "check.there" : isNeeded ? "check.missing" : `check.without_${id}`);
      return html`<li class="ability" data-state=${isThere ? "good" : isNeeded ? "bad" : "caution"}>
        ${icon(isThere ? "check" : isNeeded ? "warning" : "info")}<span>${t(`check.ability_${id}`)}</span
        ><span class=${isThere ? "visually-hidden" : "small soft"}>${words}</span>
      </li>`;
    }),
  );
  results.set("browser", browserResult(found));
}
