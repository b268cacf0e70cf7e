// @ts-check
/**
 * Everything a live page shows of a call, tied to it: stage, controls, queue, conversation,
 * instruments, tab. The page brings the elements by their ids (see audio_duplex.html).
 */

import { byId, find, on } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/texts.js";
import { html, icon, iconButton, mountView } from "../../shared/lit.js";
import { late, throttled } from "../../shared/late.js";
import { claimTab, tabStateOf } from "../../shared/tab-state.js";
import { mountNotice, toastProblem } from "../../shared/notice.js";
import { callStateOf, controlsFor, STATE_ICONS, defaultHint, heldState, pauseHint, stopKey } from "../lib/call-state.js";
import { withCaptions } from "../lib/user-turns.js";
import { START_STYLE, STOP_STYLE, mountCallControls, mountStageFrame } from "./call-frame.js";
import { mountQueueBanner } from "./call-notes.js";
import { mountTranscript } from "./transcript.js";
import { runningMs } from "../lib/session-state.js";

/** @import { NoticeAction } from "../../shared/notice.js" */
/** @import { QueuePlace } from "../../shared/server-messages.js" */
/** @import { LiveProblem, NextStep } from "../lib/call-state.js" */
/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { Caption } from "../lib/user-turns.js" */
/** @import { CallButton } from "./call-frame.js" */

// A line to type into and a button to show a picture, in the middle of a call.

/** As the server has it. Source: `core/protocols/rebase.py`. */
const MAX_CHARS = 1_000;
const loadReader = late(() => import("../lib/camera.js"));

/**
 * @param {HTMLElement} el
 * @param {{sendText: (text: string) => boolean, sendPicture: (base64: string, name: string) => boolean}} actions
 *   say whether it went out; the text stays if not
 */
function mountTextField(el, { sendText, sendPicture }) {
  const form = document.createElement("form");
  form.className = "text-form";
  form.hidden = true;
  el.append(form);
  /** @param {{target: HTMLInputElement}} event */
  const onFile = async ({ target }) => {
    const [chosen] = target.files ?? [];
    target.value = "";
    if (!chosen) return;
    try {
      const { readPicture } = await loadReader();
      sendPicture(await readPicture(chosen), chosen.name);
    } catch {
      toastProblem("bad_frame"); // whatever the browser cannot read
    }
  };
  mountView(
    form,
    () =>
      html`<input
          type="text"
          class="text-line"
          maxlength=${MAX_CHARS}
          autocomplete="off"
          enterkeyhint="send"
          dir="auto"
          aria-label=${t("live.type")}
          placeholder=${t("live.type")}
        />
        <input type="file" accept="image/*" hidden @change=${onFile} />
        ${iconButton("image", t("live.show_picture"), () => find(form, "[type=file]", HTMLElement).click(), {
          action: "show-picture",
          style: "",
        })}
        <button type="submit" class="button button-icon" aria-label=${t("live.type_send")} title=${t("live.type_send")}>
          ${icon("send")}
        </button>`,
  );
  on(form, "submit", (event) => {
    event.preventDefault();
    const input = find(form, ".text-line", HTMLInputElement);
    if (input.value.trim() !== "" && sendText(input.value)) input.value = "";
    input.focus();
  });
  return form;
}

// What the stage of a full-duplex call shows for its state.

/** @param {DuplexCall} call */
function stageOf(call) {
  const { isHeld, isMuted } = call.devices;
  const state = isHeld ? heldState(call.state) : call.state;
  const callState = callStateOf(state);
  const isBroken = callState === "ended" && state.end?.isByUser === false;
  return {
    callState,
    sign: isBroken ? "warning" : STATE_ICONS[callState],
    word: t(`live.state.${callState}`),
    hint: pauseHint(state) ?? (isBroken ? t("live.hint.broken") : defaultHint(callState, isMuted)),
  };
}

/** @param {DuplexCall} call @param {() => void} start @param {string} startKey @returns {CallButton[]} */
function buttonsOf(call, start, startKey) {
  const { state, devices } = call;
  const { isMuted, canMute, isStarting } = devices;
  const can = controlsFor(state);
  const isShown = can.isTalk;
  const [pauseSign, pauseKey] = can.canResume ? ["play", "live.resume"] : ["pause", "live.pause"];
  return [
    {
      ...{ action: "start", style: START_STYLE, isShown: can.canStart, isOff: isStarting, sign: "mic", run: start },
      label: t(state.phase === "ended" ? "live.start_again" : startKey),
    },
    {
      ...{ action: "mute", isShown: isShown && canMute, sign: isMuted ? "mic-off" : "mic", isPressed: isMuted },
      ...{ label: t("live.mute"), run: () => call.setMuted(!call.devices.isMuted) },
    },
    {
      ...{ action: "interrupt", isShown, isOff: !can.canInterrupt, sign: "hand", label: t("live.interrupt") },
      run: () => call.interrupt(),
    },
    {
      ...{ action: "force-listen", isShown, sign: "wave", isPressed: state.isForceListen, title: t("live.force_listen_hint") },
      ...{ label: t("live.force_listen"), run: () => call.session?.setForceListen(!call.state.isForceListen) },
    },
    { action: "pause", isShown, sign: pauseSign, label: t(pauseKey), run: () => call.session?.pauseToggle() },
    {
      ...{ action: "stop", style: STOP_STYLE, isShown: can.canStop || state.phase === "stopping", isOff: !can.canStop },
      ...{ sign: state.preparedAtMs === null ? "close" : "stop", label: t(stopKey(state)), run: () => call.stop() },
    },
  ];
}

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
const SHOWN_WARNINGS = new Set([
  "reconnecting",
  "reconnected",
  "late_chunk",
  "upload_slow",
  "context_nearly_full",
  "recording_stopped",
  "bad_frame",
  "no_captions",
  "one_voice",
  "too_big",
  "voice_cut",
]);
const SHOWN_AGAIN_MS = 20_000;

/** @param {DuplexCall} call @param {LiveViewOptions} options */
export function mountLiveView(call, options) {
  const queue = mountQueueBanner(byId("queue", HTMLElement));
  const start = () => {
    queue.unlock();
    options.start();
  };
  const notice = mountProblemNotice(byId("notice", HTMLElement), call, { ...options, restart: start });
  const drawStage = mountStageFrame(byId("stage", HTMLElement), {
    levels: () => call.levels(),
    lengthMs: () => (call.state.preparedAtMs ? runningMs(call.state, performance.now()) : null),
    look: () => stageOf(call),
  });
  const drawControls = mountCallControls(byId("controls", HTMLElement), "live.controls", () =>
    buttonsOf(call, start, options.startKey ?? "live.start"),
  );
  const transcript = mountTranscript(byId("transcript", HTMLElement));
  /** Pictures that were shown by hand, of which the server says nothing. @type {Caption[]} */
  let pictures = [];
  const textField = mountTextField(byId("transcript", HTMLElement), {
    sendText: (text) => call.session?.sendText(text) ?? false,
    sendPicture(base64, name) {
      const isSent = call.session?.sendPicture(base64) ?? false;
      if (isSent)
        pictures = [
          ...pictures,
          { text: t("live.picture_shown", { name }), startedAtMs: performance.now(), lengthMs: 0, isTyped: true },
        ];
      drawTranscript();
      return isSent;
    },
  });
  /** @type {ReturnType<typeof import("./instruments.js")["mountInstruments"]> | null} */
  let instruments = null;
  const loadInstruments = late(
    () => import("./instruments.js"),
    ({ mountInstruments }) => {
      instruments = mountInstruments(call, options);
      instruments.update();
    },
  );
  const tab = claimTab();
  onLangChange(() => tab.setTitle(document.title)); // the page has just put its own title there
  on(window, "pagehide", () => tab.restore());

  const update = () => {
    const { state } = call;
    drawStage();
    drawControls();
    textField.hidden = !controlsFor(state).isTalk;
    const { queue: place } = state;
    tab.show(tabStateOf(state), place ? `(${place.position}) ` : undefined);
    document.documentElement.dataset.call = state.phase;
    instruments?.update();
    drawTranscript();
  };
  const drawTranscript = throttled(() => {
    const { turns, captions, preparedAtMs } = call.state;
    const userTurns = withCaptions(call.kind.userTurns.turns, [...captions, ...pictures]);
    transcript.update({ modelTurns: turns, userTurns, startedAtMs: preparedAtMs });
  }, TRANSCRIPT_MS);
  /** @type {QueuePlace | null} */
  let shownPlace = null;
  call.on("state", (state) => {
    if (state.queue !== shownPlace) queue.update((shownPlace = state.queue));
    update();
  });
  call.on("devices", ({ isStarting }) => {
    update();
    if (isStarting) byId("stage", HTMLElement).scrollIntoView({ block: "nearest" });
  });
  call.on("assigned", () => queue.playTurn());
  call.on("prepared", () => {
    pictures = [];
    queue.playReady();
    loadInstruments().catch(toastProblem);
  });
  call.on("heard", drawTranscript);
  call.on("warning", showWarnings());
  update();
  return { update, loadInstruments, notice };
}

/** @returns {(warning: {code: string}) => void} tells each kind of warning now and then only */
function showWarnings() {
  /** @type {Map<string, number>} */
  const shownAtMs = new Map();
  return ({ code }) => {
    const nowMs = performance.now();
    if (!SHOWN_WARNINGS.has(code) || nowMs - (shownAtMs.get(code) ?? -Infinity) < SHOWN_AGAIN_MS) return;
    shownAtMs.set(code, nowMs);
    toastProblem(code);
  };
}

// Says what is wrong with a live call and offers the next step as a button.

/**
 * @param {HTMLElement} el
 * @param {DuplexCall} call
 * @param {{restart: () => void, openCamera?: () => void, useFile?: () => void}} options
 */
function mountProblemNotice(el, call, { restart, openCamera, useFile }) {
  const notice = mountNotice(el);
  /** @type {LiveProblem | null} */
  let shown = null;
  /** @type {Record<NextStep, NoticeAction>} */
  const actions = {
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
  /** @param {LiveProblem} problem */
  const show = (problem) => {
    if (shown?.kind === "bad" && problem.kind !== "bad") return; // the worse one stays
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
