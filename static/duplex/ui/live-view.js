// @ts-check
/**
 * Everything a live page shows of a call, tied to it: stage, controls, queue, conversation,
 * instruments, tab. The page brings the elements by their ids (see audio_duplex.html).
 */

import { byId, on } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { formatClock } from "../../shared/formats.js";
import { late } from "../../shared/late.js";
import { claimTab, tabStateOf } from "../../shared/tab-state.js";
import { toastProblem } from "../../shared/toast.js";
import { controlsFor } from "../lib/call-state.js";
import { withCaptions } from "../lib/captions.js";
import { mountCallControls } from "./call-controls.js";
import { mountProblemNotice } from "./problem-notice.js";
import { mountQueueBanner } from "./queue-banner.js";
import { mountStage } from "./stage.js";
import { mountTextField } from "./text-field.js";
import { mountTranscript } from "./transcript.js";
import { throttled } from "./throttled.js";

/** @typedef {import("./live-call.js").LiveCall} LiveCall */
/** @typedef {import("../lib/session-state.js").SessionState} SessionState */

/**
 * @typedef {Object} LiveViewOptions
 * @property {() => void} start the visitor pressed the button
 * @property {() => number} maxKvTokens
 * @property {() => string} modelName
 * @property {boolean} [hasVision]
 * @property {string} [startKey] words of the start button
 * @property {() => void} [openCamera] what to try when the camera failed
 * @property {() => void} [useFile]
 */

const TRANSCRIPT_MS = 200;
/** Warnings shown for a moment; lasting ones are shown by `problem`. */
const TOLD_WARNINGS = new Set(["reconnecting", "reconnected", "late_chunk", "upload_slow", "context_nearly_full", "recording_stopped", "bad_frame", "no_captions", "one_voice", "too_big", "voice_cut"]);
const TOLD_AGAIN_MS = 20_000;

/**
 * @param {LiveCall} call
 * @param {LiveViewOptions} options
 */
export function mountLiveView(call, options) {
  const queue = mountQueueBanner(byId("queue", HTMLElement));
  const start = () => {
    queue.unlock();
    options.start();
  };
  const notice = mountProblemNotice(byId("notice", HTMLElement), call, { ...options, restart: start });
  const levels = () => call.levels();
  const stage = mountStage(byId("stage", HTMLElement), { levels, hintFor: pauseHint });
  const controls = mountCallControls(
    byId("controls", HTMLElement),
    {
      start,
      stop: () => call.stop(),
      pauseToggle: () => call.pauseToggle(),
      interrupt: () => call.interrupt(),
      toggleForceListen: () => call.toggleForceListen(),
      toggleMute: () => call.setMuted(!call.devices.isMuted),
    },
    { startKey: options.startKey },
  );
  const transcript = mountTranscript(byId("transcript", HTMLElement));
  /** Pictures that were shown by hand, of which the server says nothing. @type {import("../lib/captions.js").Caption[]} */
  let pictures = [];
  let sendPicture = (/** @type {string} */ _base64) => false;
  const textField = mountTextField(byId("transcript", HTMLElement), {
    sendText: (text) => call.sendText(text),
    sendPicture(base64, name) {
      const isSent = sendPicture(base64);
      if (isSent) pictures = [...pictures, { text: t("live.picture_shown", { name }), startedAtMs: performance.now(), lengthMs: 0, isTyped: true }];
      drawTranscript();
      return isSent;
    },
  });
  call.on("opened", (opened) => (sendPicture = opened.sendPicture));
  /** @type {ReturnType<typeof import("./live-instruments.js")["mountInstruments"]> | null} */
  let instruments = null;
  const loadInstruments = late(() => import("./live-instruments.js"), ({ mountInstruments }) => {
    instruments = mountInstruments(call, options);
    instruments.update();
  });
  const tab = claimTab();
  onLangChange(() => tab.setTitle(document.title)); // the page has just put its own title there
  on(window, "pagehide", () => tab.restore());

  const update = () => {
    const { state, devices } = call;
    const { isMuted, canMute, isStarting, isHeld } = devices;
    stage.update(isHeld ? heldState(state) : state, isMuted);
    controls.update({ state, isMuted, canMute, isStarting });
    textField.update(controlsFor(state).isTalk);
    const { queue: place } = state;
    tab.show(tabStateOf(state), place ? `(${place.position}) ` : undefined);
    document.documentElement.dataset.call = state.phase;
    instruments?.update();
    drawTranscript();
  };
  const drawTranscript = throttled(() => {
    const { turns, captions, preparedAtMs } = call.state;
    const userTurns = withCaptions(call.userTurns.turns, [...captions, ...pictures]);
    transcript.update({ modelTurns: turns, userTurns, startedAtMs: preparedAtMs });
  }, TRANSCRIPT_MS);
  /** @type {import("../lib/session-state.js").QueuePlace | null} */
  let shownPlace = null;
  call.on("state", (state) => {
    if (state.queue !== shownPlace) queue.update((shownPlace = state.queue));
    update();
  });
  call.on("devices", update);
  call.on("devices", ({ isStarting }) => {
    if (isStarting) byId("stage", HTMLElement).scrollIntoView({ block: "nearest" });
  });
  call.on("assigned", () => queue.playTurn());
  call.on("prepared", () => {
    pictures = [];
    queue.playReady();
  });
  call.on("prepared", () => loadInstruments().catch(toastProblem));
  call.on("heard", drawTranscript);
  call.on("warning", warningTeller());
  update();
  return {
    update,
    /** Brings in the instruments; a call does so by itself. */
    loadInstruments,
    notice,
    transcriptText: () => transcript.text(),
  };
}

/**
 * While the gate holds the answer the model listens already.
 *
 * @param {SessionState} state
 * @returns {SessionState}
 */
function heldState(state) {
  return state.activity === "speaking" ? { ...state, activity: "listening" } : state;
}

/** @param {SessionState} state */
function pauseHint(state) {
  if (state.phase !== "paused" || state.pauseEndsAtMs === null) return null;
  if (state.isAutoPaused) return t("live.hint.paused_auto");
  return t("live.hint.paused", { time: formatClock(state.pauseTimeoutS) });
}

/** @returns {(warning: {code: string}) => void} tells each kind of warning now and then only */
function warningTeller() {
  /** @type {Map<string, number>} */
  const toldAtMs = new Map();
  return ({ code }) => {
    const nowMs = performance.now();
    if (!TOLD_WARNINGS.has(code) || nowMs - (toldAtMs.get(code) ?? -Infinity) < TOLD_AGAIN_MS) return;
    toldAtMs.set(code, nowMs);
    toastProblem(code);
  };
}
