/**
 * View common to all calls: stage, buttons, queue, problems, tab; and offers after a call: download of the browser's recording,
 * which is made here, replay and link of the server's. It looks its elements up by id.
 */

import { byId, html, icon, mountNotice, mountView, nothing, on, textButton, toast, toastProblem } from "../../shared/lit.js";
import { onLangChange, t } from "../../shared/texts.js";
import { claimTab } from "../../shared/tab-state.js";
import { controlsFor, problemOfDevice, stopKey, tabStateOf, throttledWarnings } from "../lib/call-state.js";
import { mountStage } from "./call-frame.js";
import { mountQueueBanner } from "./call-notes.js";
import { late } from "../../shared/async.js";
import { mountOfferShare } from "../../shared/late-parts.js";
import { addRecent } from "../../shared/memory.js";

/** @import { ButtonLook, NoticeAction } from "../../shared/lit.js" */
/** @import { QueuePlace } from "../../shared/server-messages.js" */
/** @import { LiveProblem, NextStep } from "../lib/call-state.js" */
/** @import { DuplexCall, HalfCall } from "../lib/call-kinds.js" */
/** @import { BrowserRecording } from "../../shared/save-share.js" */
/** @import { SessionRecorder } from "../lib/session-recorder.js" */

/** @typedef {DuplexCall | HalfCall} AnyCall */
/** @typedef {{label: string, run: () => void} & ButtonLook} CallButton */

/**
 * @typedef {Object} CallViewOptions
 * @property {() => Promise<unknown>} start the visitor pressed the button
 * @property {() => CallButton[]} moreButtons between mute and end
 * @property {() => void} draw redraws the rest of the page
 * @property {string} [startKey] label of the start button
 * @property {() => void} [openCamera] retries a failed camera
 * @property {() => void} [useFile]
 */

/** @param {AnyCall} anyCall @param {CallViewOptions} options */
export function mountCallView(anyCall, { start, moreButtons, draw, startKey = "live.start", ...steps }) {
  const call = /** @type {DuplexCall} */ (anyCall); // TypeScript cannot call `on` of a union
  const queue = mountQueueBanner(byId("queue"));
  const begin = () => {
    queue.unlock();
    return start();
  };
  const notice = mountProblemNotice(byId("notice"), call, { ...steps, restart: begin });
  const [stage, controls] = [byId("stage"), byId("controls")];
  const drawStage = mountStage(stage, call);
  controls.classList.add("call-controls");
  controls.role = "group";
  const drawControls = mountView(controls, () => {
    const { state, devices } = call;
    const { isMuted, canMute, isStarting } = devices;
    const can = controlsFor(state, isStarting);
    controls.ariaLabel = t("live.controls");
    /** @type {CallButton[]} */ const buttons = [
      {
        action: "start",
        style: "button-primary button-large call-start",
        isShown: can.canStart,
        sign: "mic",
        run: begin,
        label: t(state.phase === "ended" ? "live.start_again" : startKey),
      },
      {
        action: "mute",
        isShown: can.isTalk && canMute,
        sign: isMuted ? "mic-off" : "mic",
        isPressed: isMuted,
        label: t("live.mute"),
        run: () => call.setMuted(!call.devices.isMuted),
      },
      ...moreButtons(),
      {
        action: "stop",
        style: "button-danger call-button",
        isShown: can.isStopShown,
        isIdle: !can.canStop,
        sign: state.preparedAtMs === null ? "close" : "stop",
        label: t(stopKey(state)),
        run: () => call.stop(),
      },
    ];
    return buttons.map(({ label, run, ...look }) =>
      textButton(html`<span class="call-label">${label}</span>`, run, { style: "call-button", isIdle: false, ...look }),
    );
  });
  const tab = claimTab();
  onLangChange(() => tab.setTitle(document.title)); // the page has just set its own title
  on(window, "pagehide", () => tab.restore());

  /** @type {QueuePlace | null} */ let shownPlace = null;
  const update = () => {
    const { phase, queue: place } = call.state;
    drawStage();
    drawControls();
    if (place !== shownPlace) queue.update((shownPlace = place));
    tab.show(tabStateOf(call.state), place ? `(${place.position}) ` : undefined);
    document.documentElement.dataset.call = call.devices.isStarting ? "connecting" : phase;
    draw();
  };
  call.on("state", update);
  call.on("devices", ({ isStarting }) => {
    update();
    if (isStarting) stage.closest(".stage-card")?.scrollIntoView({ block: "nearest" });
  });
  call.on("assigned", () => queue.playTurn());
  call.on("prepared", () => queue.playReady());
  call.on("warning", throttledWarnings(toastProblem));
  if (!isSecureContext) notice.show(problemOfDevice({ code: "insecure_context" }, false));
  return { notice, start: begin, update };
}

// Shows a problem of a call, with buttons for the next steps.

/**
 * @param {HTMLElement} el
 * @param {DuplexCall} call
 * @param {{restart: () => void, openCamera?: () => void, useFile?: () => void}} options
 */
function mountProblemNotice(el, call, { restart, openCamera, useFile }) {
  const notice = mountNotice(el);
  /** @type {LiveProblem | null} */ let shown = null;
  /** @type {Record<NextStep, NoticeAction>} */ const actions = {
    restart: { label: () => t("live.start_again"), run: restart },
    retry: { label: () => t("common.retry"), run: restart },
    reconnect: { label: () => t("live.reconnect"), run: () => void call.reopenSource() },
    home: { label: () => t("live.to_home"), href: "/" },
    check: { label: () => t("nav.check"), href: "/check" },
    camera: { label: () => t("omni.camera_again"), run: () => openCamera?.() },
    file: { label: () => t("omni.use_file"), run: () => useFile?.() },
    voice: { label: () => t("app.audio_duplex.title"), href: "/audio_duplex" },
  };
  const clear = () => {
    shown = null;
    notice.clear();
  };
  const show = (/** @type {LiveProblem} */ problem) => {
    if (shown?.kind === "bad" && problem.kind !== "bad") return; // the more severe one stays
    shown = problem;
    notice.show(problem, { kind: problem.kind, actions: problem.steps.map((step) => actions[step]) });
  };
  call.on("problem", show);
  call.on("solved", ({ code }) => {
    if (shown?.code === code) clear();
  });
  call.on("devices", ({ isStarting }) => {
    if (isStarting) clear();
  });
  return { show, clear };
}

const loadRecorder = late(() => Promise.all([import("../lib/session-recorder.js"), import("../lib/capture.js")]));

/**
 * @typedef {Object} FinishedCall
 * @property {string | null} recordingId the server's recording; null if there is none
 * @property {BrowserRecording | null} [sound] the browser's recording
 * @property {() => Promise<BrowserRecording | null>} [getBrowserRecording] the file to share
 */

/**
 * @param {HTMLElement} el
 * @param {{appType: string}} options
 * @returns {(call: FinishedCall | null) => void} null hides the offer
 */
export function mountAfterCall(el, { appType }) {
  const shareBox = document.createElement("div");
  shareBox.className = "share-box";
  const offerShare = mountOfferShare(shareBox);
  /** @type {FinishedCall | null} */ let finished = null;
  /** @type {string | null} */ let soundUrl = null;
  const offers = (/** @type {FinishedCall} */ { recordingId, sound }) => [
    soundUrl &&
      html`<a class="button" href=${soundUrl} download=${sound?.fileName ?? ""} data-action="download"
        >${icon("download")}${t("live.download")}</a
      >`,
    recordingId && html`<a class="button" href="/s/${recordingId}" data-action="replay">${icon("play")}${t("live.replay")}</a>`,
    shareBox,
  ];
  const draw = mountView(el, () => (finished ? offers(finished) : nothing));
  el.hidden = true;
  return (call) => {
    if (soundUrl) URL.revokeObjectURL(soundUrl);
    finished = call;
    soundUrl = call?.sound ? URL.createObjectURL(call.sound.blob) : null;
    el.hidden = call === null;
    if (call?.recordingId) addRecent(call.recordingId, appType);
    const { recordingId = null, getBrowserRecording } = call ?? {};
    // Loading fails if the server is gone; the browser's recording is available all the same.
    offerShare(call && { recordingId, appType, getBrowserRecording }).catch(() => (shareBox.hidden = true));
    draw();
  };
}

/**
 * @param {HTMLElement} el
 * @param {DuplexCall} call
 * @param {{appType: string, isOn: () => boolean, video?: () => BrowserRecording | null}} options
 *   `video`: the page's own video recording, shared instead of the audio
 */
export function mountCallRecorder(el, call, { appType, isOn, video }) {
  const offer = mountAfterCall(el, { appType });
  /** @type {SessionRecorder | null} */ let recorder = null;
  call.on("devices", ({ isStarting }) => {
    if (isStarting) offer(null);
  });
  const record = async (/** @type {AudioNode | null} */ answer) => {
    const [{ SessionRecorder }, { Capture }] = await loadRecorder();
    if (recorder || !call.isActive) return;
    const fresh = new SessionRecorder(new Capture());
    recorder = fresh;
    fresh.addEventListener("full", () => toast(t("live.recording_full")));
    // The call may have ended while the recorder was starting.
    const start = () => recorder === fresh && fresh.start(call, answer).catch(() => undefined);
    if (call.state.phase === "running") return start();
    const off = call.on("prepared", () => {
      off();
      start();
    });
  };
  call.on("opened", ({ player }) => {
    // After a change of microphone the same file continues.
    if (!recorder && isOn()) record(player.output).catch(toastProblem);
  });
  call.beforeClose(async () => recorder?.stop());
  call.on("ended", ({ state: { preparedAtMs, sessionId, recordingSessionId: recordingId } }) => {
    const blob = preparedAtMs === null ? null : (recorder?.encode() ?? null);
    recorder = null;
    const sound = blob && { blob, fileName: `${sessionId}.wav` };
    if (preparedAtMs === null) offer(null);
    else offer({ recordingId, sound, getBrowserRecording: async () => video?.() ?? sound });
  });
}
