/** View of full-duplex calls: conversation, text input, live metrics. */

import { formatClock, formatNumber, getLang, MS_PER_S, t } from "../../shared/texts.js";
import { byId, fileButton, find, guard, html, icon, mountView, nothing, on, repeat, toastProblem } from "../../shared/lit.js";
import { mountTalkList } from "./call-frame.js";
import { late, throttled } from "../../shared/async.js";
import { controlsFor } from "../lib/call-state.js";
import { appendKept, inOrder, TURNS_KEPT, withCaptions } from "../lib/session-state.js";
import { mountSuggestions } from "../lib/call-parts.js";
import { mountCallView } from "./call-view.js";

/** @import { TranscriptTurn } from "../lib/full-duplex.js" */
/** @import { Caption, UserTurn } from "../lib/session-state.js" */
/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { CallViewOptions } from "./call-view.js" */

/**
 * @param {HTMLElement} el
 * @param {() => {modelTurns: readonly TranscriptTurn[], userTurns: readonly UserTurn[], startedAtMs: number | null}} talk
 * @returns {() => void} draws what is new
 */
function mountTranscript(el, talk) {
  let latest = talk();
  const row = (/** @type {ReturnType<typeof inOrder>[number]} */ { user, model }) => {
    const { startedAtMs } = latest;
    if (model) return guard([model, startedAtMs, getLang()], () => modelTurn(model, startedAtMs));
    // A turn with captions is a new object each time.
    const { bars, text, isOpen, lengthMs } = user;
    return guard([bars, text, isOpen, lengthMs, startedAtMs, getLang()], () => userTurn(user, startedAtMs));
  };
  const draw = mountTalkList(el, "live.transcript_empty", () => {
    const turns = inOrder(latest.modelTurns, latest.userTurns);
    return { isEmpty: turns.length === 0, rows: repeat(turns, ({ key }) => key, row) };
  });
  return () => {
    const { modelTurns, userTurns } = latest;
    latest = talk();
    const hasNews = modelTurns !== latest.modelTurns;
    if (hasNews || userTurns !== latest.userTurns) draw(hasNews);
  };
}

/** @param {string} who @param {number} atMs @param {number | null} startedAtMs @param {unknown} [more] */
const head = (who, atMs, startedAtMs, more = nothing) =>
  html`<p class="turn-head small">
    <span class="turn-who">${who}</span
    ><span class="soft number">${formatClock((atMs - (startedAtMs ?? atMs)) / MS_PER_S)}</span>${more}
  </p>`;

/** @param {TranscriptTurn} turn @param {number | null} startedAtMs */
function modelTurn({ text, endedAtMs, isInterrupted, startedAtMs: atMs }, startedAtMs) {
  const cut = isInterrupted ? html`<span class="turn-cut">${icon("hand")}${t("live.state.interrupted")}</span>` : nothing;
  const words = text.trim();
  return html`<li class="turn" data-who="model" data-open=${String(endedAtMs === null)}>
    ${head(t("common.model"), atMs, startedAtMs, cut)}
    <p class="turn-text ${words ? "" : "soft"}" dir="auto" .textContent=${words || t("live.no_words")}></p>
  </li>`;
}

/** @param {UserTurn} turn @param {number | null} startedAtMs */
function userTurn({ bars, text, isOpen, lengthMs, startedAtMs: atMs }, startedAtMs) {
  const voice = () =>
    html`<p class="turn-voice">
      ${waveform("turn-wave", bars)}<span class="small"
        >${t("live.you_spoke", { seconds: formatNumber(lengthMs / MS_PER_S, 1) })}</span
      >
    </p>`;
  return html`<li class="turn" data-who="user" data-open=${String(isOpen)}>
    ${head(t("common.you"), atMs, startedAtMs)}${lengthMs > 0 ? voice() : nothing}
    ${text ? html`<p class="turn-text" dir="auto" .textContent=${text}></p>` : nothing}
  </li>`;
}

/** @param {string} style @param {readonly number[]} bars heights, 0 to 1 */
export const waveform = (style, bars) =>
  html`<span class=${style} aria-hidden="true">${bars.map((bar) => html`<i .style="--height:${bar.toFixed(2)}"></i>`)}</span>`;

// Text and picture input during a call.

const MAX_CHARS = 1_000; // the server's limit. Source: `ITEM_MAX_CHARS` in core/protocols/duplex_units.py.
const loadReader = late(() => import("../lib/camera.js"));

/**
 * @param {HTMLElement} el
 * @param {{sendText: (text: string) => boolean, showPicture: (base64: string, name: string) => void}} actions
 *   `sendText` returns whether it was sent; the text stays if not
 */
function mountTextField(el, { sendText, showPicture }) {
  const form = document.createElement("form");
  form.className = "text-form";
  form.hidden = true;
  el.append(form);
  const show = async (/** @type {File} */ file) => {
    try {
      const { readPicture } = await loadReader();
      showPicture(await readPicture(file), file.name);
    } catch {
      toastProblem("bad_frame"); // the browser cannot decode it
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
        ${fileButton(t("live.show_picture"), show, { accept: "image/*", sign: "image", action: "show-picture", isIconOnly: true })}
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

function buttonsOf(/** @type {DuplexCall} */ call) {
  const { state } = call;
  const { canInterrupt, canResume, isTalk: isShown } = controlsFor(state);
  const [pauseSign, pauseKey] = canResume ? ["play", "live.resume"] : ["pause", "live.pause"];
  return [
    {
      action: "interrupt",
      isShown,
      isIdle: !canInterrupt,
      sign: "hand",
      label: t("live.interrupt"),
      run: () => call.interrupt(),
    },
    {
      action: "force-listen",
      isShown,
      sign: "wave",
      isPressed: state.isForceListen,
      title: t("live.force_listen_hint"),
      label: t("live.force_listen"),
      run: () => call.session?.setForceListen(!call.state.isForceListen),
    },
    { action: "pause", isShown, sign: pauseSign, label: t(pauseKey), run: () => call.session?.pauseToggle() },
  ];
}

/**
 * @typedef {Omit<CallViewOptions, "draw" | "moreButtons"> & MetricsOptions} LiveViewOptions
 *
 * @typedef {Object} MetricsOptions
 * @property {() => number} maxKvTokens
 * @property {() => string} modelName
 * @property {boolean} [hasVision]
 */

const TRANSCRIPT_MS = 200;

/** @param {DuplexCall} call @param {LiveViewOptions} options */
export function mountLiveView(call, { maxKvTokens, modelName, hasVision, ...options }) {
  /** Captions that the server does not send: pictures shown, suggestions spoken. @type {readonly Caption[]} */ let ownCaptions =
    [];
  /** @param {string} text @param {number} lengthMs 0 if not spoken */
  const addCaption = (text, lengthMs) => {
    const caption = { text, startedAtMs: performance.now(), lengthMs, isTyped: lengthMs === 0 };
    ownCaptions = appendKept(ownCaptions, caption, TURNS_KEPT);
    drawTranscript();
  };
  const transcript = byId("transcript");
  const talk = () => {
    const { turns: modelTurns, captions, preparedAtMs: startedAtMs } = call.state;
    return { modelTurns, userTurns: withCaptions(call.kind.userTurns.turns, [...captions, ...ownCaptions]), startedAtMs };
  };
  const drawTranscript = throttled(mountTranscript(transcript, talk), TRANSCRIPT_MS);
  const textField = mountTextField(transcript, {
    sendText: (text) => call.session?.sendText(text) ?? false,
    showPicture: (base64, name) => call.kind.showPicture(base64, () => addCaption(t("live.picture_shown", { name }), 0)),
  });
  /** @type {(() => void) | null} */ let drawInstruments = null;
  const loadInstruments = late(
    () => import("./instruments.js"),
    ({ mountInstruments }) => {
      drawInstruments = mountInstruments(call, { maxKvTokens, modelName, hasVision });
      drawInstruments();
    },
  );
  const view = mountCallView(call, {
    ...options,
    moreButtons: () => buttonsOf(call),
    draw() {
      textField.hidden = !controlsFor(call.state).isTalk;
      drawInstruments?.();
      drawTranscript();
    },
  });
  call.on("prepared", () => {
    ownCaptions = [];
    loadInstruments().catch(toastProblem);
  });
  call.on("heard", drawTranscript);
  const suggestions = mountSuggestions(call, {
    start: view.start,
    type: (sentence) => call.session?.sendText(sentence),
    onSpoken: addCaption,
  });
  return { ...view, ...suggestions, loadInstruments };
}
