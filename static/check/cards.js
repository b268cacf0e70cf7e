/** Cards of the checks: camera, speaker (melody), echo (chirps), network and browser. */

import { cameraCode } from "../duplex/lib/call-state.js";
import { openCamera } from "../duplex/lib/camera.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { byId, find, html, icon, mountView, on, setText } from "../shared/lit.js";
import { CodedError, codeOf, onLangChange, reasonOf, t } from "../shared/texts.js";
import { createRateCounter } from "../shared/async.js";
import { measureRoundTrips, measureSocket, playMelody } from "./devices.js";
import { browserAbilities, browserResult, cameraResult, echoResult, problemResult, serverResult } from "./results.js";
import { CAPTURE_RATE_HZ } from "../duplex/lib/capture-format.js";
import { openMicrophone, recordFrom, untilRunning } from "../duplex/lib/capture.js";
import { runEchoTest } from "../duplex/lib/measure.js";

/** @import { Camera } from "../duplex/lib/camera.js" */
/** @import { Results } from "./results.js" */
/** @import { StatusReport } from "../shared/texts.js" */

// The camera's card: picture, size, frame rate.

const SETTLE_PICTURES = 20; // frames until the rate has settled

export function mountCameraCheck(/** @type {Results} */ results) {
  const start = byId("camera-start", HTMLButtonElement);
  const stop = byId("camera-stop", HTMLButtonElement);
  const video = byId("camera-video", HTMLVideoElement);
  const size = byId("camera-size");
  const devices = mountAudioDeviceSelector(byId("camera-devices"), {
    prefix: "check",
    kinds: ["camera"],
    onChange: () => void (camera && open()),
  });
  /** @type {Camera | null} */ let camera = null;
  let opening = 0;
  let shown = { width: 0, height: 0, fps: 0 };

  const draw = () => {
    start.hidden = camera !== null;
    stop.hidden = camera === null;
    size.hidden = camera === null || shown.fps === 0;
    setText(size, t("check.camera_size", shown));
  };
  const close = () => {
    opening += 1;
    camera?.close();
    camera = null;
    results.leave("camera");
    draw();
  };
  const fail = (/** @type {unknown} */ error) => {
    close();
    // A camera is optional.
    results.set("camera", problemResult(cameraCode(error), { state: "caution", detail: reasonOf(error) }));
  };
  const open = async () => {
    const hadFocus = document.activeElement === start;
    close();
    const mine = opening;
    results.set("camera", { state: "running", text: { key: "check.camera_opening" } });
    try {
      const opened = await openCamera({ deviceId: devices.cameraId, video });
      if (mine !== opening) return opened.close();
      camera = opened;
      follow(opened, mine);
    } catch (error) {
      if (mine === opening) fail(error);
    }
    draw();
    if (hadFocus && camera) stop.focus(); // the pressed button is hidden now
    await devices.refresh();
  };
  const follow = (/** @type {Camera} */ opened, /** @type {number} */ mine) => {
    const countPicture = createRateCounter();
    const look = (/** @type {number} */ nowMs) => {
      const { rate, count } = countPicture(nowMs);
      if (mine !== opening) return;
      shown = { width: opened.size.widthPx, height: opened.size.heightPx, fps: Math.round(rate) };
      draw();
      const isOver = count >= SETTLE_PICTURES && results.get("camera").state === "running";
      if (isOver) results.set("camera", cameraResult(opened.label, shown));
      opened.video.requestVideoFrameCallback(look);
    };
    on(opened, "ended", (/** @type {CustomEvent<Error>} */ { detail }) => fail(detail));
    opened.video.requestVideoFrameCallback(look);
  };
  on(start, "click", () => void open());
  on(stop, "click", () => {
    const hadFocus = document.activeElement === stop;
    close();
    if (hadFocus) start.focus();
  });
  on(window, "pagehide", close);
  onLangChange(draw);
  draw();
}

const START_LIMIT_MS = 3_000; // expires without an audio device, or if the browser waits for a gesture

/** Plays where the visitor chose, once it runs. @param {AudioContext} context @param {string} speakerId @param {number} limitMs */
async function startOn(context, speakerId, limitMs) {
  const { setSinkId } = /** @type {{setSinkId?: (id: string) => Promise<void>}} */ (context); // not in every browser
  if (speakerId) await setSinkId?.call(context, speakerId);
  await Promise.all([context.resume(), untilRunning(context, AbortSignal.timeout(limitMs))]);
}

export function mountSpeakerCheck(/** @type {Results} */ results) {
  const play = byId("speaker-play", HTMLButtonElement);
  const question = byId("speaker-question");
  const sides = find(byId("speaker"), ".sides");
  const devices = mountAudioDeviceSelector(byId("speaker-devices"), { prefix: "check", kinds: ["speaker"] });
  let facts = {};

  const listen = async () => {
    play.disabled = true;
    results.set("speaker", { state: "running", text: { key: "check.speaker_playing" } });
    /** @type {AudioContext | null} */ let context = null;
    try {
      context = new AudioContext();
      await startOn(context, devices.speakerId, START_LIMIT_MS);
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
const ECHO_CHUNK_SAMPLES = CAPTURE_RATE_HZ / 10; // so that a recording ends soon after its length

/** @param {{micId: string, speakerId: string, echoCancellation: boolean}} wish */
async function measure({ micId, speakerId, echoCancellation }) {
  const microphone = await openMicrophone({
    deviceId: micId,
    echoCancellation,
    noiseSuppression: echoCancellation,
    autoGainControl: false,
    chunkSamples: ECHO_CHUNK_SAMPLES,
  });
  try {
    await startOn(microphone.context, speakerId, LIMIT_MS);
    /** @type {Promise<never>} */ const expired = new Promise((_, reject) => {
      setTimeout(() => reject(new CodedError("no_sound_output")), LIMIT_MS);
    });
    return await Promise.race([runEchoTest(microphone, recordFrom), expired]);
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

export function mountServerCheck(/** @type {Results} */ results, /** @type {() => StatusReport | null} */ latestReport) {
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
  return run;
}

export function mountBrowserCheck(/** @type {Results} */ results) {
  const abilities = browserAbilities(globalThis);
  mountView(byId("abilities"), () =>
    abilities.map(({ id, isThere, isNeeded }) => {
      const words = t(isThere ? "check.there" : isNeeded ? "check.missing" : `check.without_${id}`);
      return html`<li class="ability" data-state=${isThere ? "good" : isNeeded ? "bad" : "caution"}>
        ${icon(isThere ? "check" : isNeeded ? "warning" : "info")}<span>${t(`check.ability_${id}`)}</span
        ><span class=${isThere ? "visually-hidden" : "small soft"}>${words}</span>
      </li>`;
    }),
  );
  results.set("browser", browserResult(abilities));
}
