/**
 * Displays around the picture of a video call: subtitles, last turns, level bars, sent pictures,
 * recordings. It looks its elements up by id (see omni.html).
 */

import { byId, find, html, mountView, on } from "../../shared/lit.js";
import { formatNumber, t } from "../../shared/texts.js";
import { subtitleLookOf } from "../lib/call-settings.js";
import { late } from "../../shared/async.js";
import { sentText } from "../lib/call-texts.js";
import { lastTurns, subtitleAt } from "../lib/subtitle-text.js";
import { mountLevelBars } from "./meters.js";

/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { PictureTaker } from "../lib/picture-taker.js" */
/** @import { SubtitleLook } from "../lib/subtitle-text.js" */
/** @import { TranscriptTurn } from "../lib/full-duplex.js" */
/** @import { UserTurn } from "../lib/user-turns.js" */
/** @import { OmniStore } from "../lib/call-settings.js" */

// Named presets of the length penalty.

const LENGTHS = Object.freeze({ concise: 1.05, balanced: 1.1, verbose: 1.2 });
const DIGITS = 2;

/** @param {HTMLElement} el @param {OmniStore} store */
function mountLengthPills(el, store) {
  el.setAttribute("role", "group");
  const draw = mountView(el, () => {
    el.setAttribute("aria-label", t("live.settings.length"));
    return Object.entries(LENGTHS).map(
      ([name, value]) =>
        html`<button
          type="button"
          class="pill"
          data-length=${name}
          aria-pressed=${String(store.get("length_penalty") === value)}
          @click=${() => store.set("length_penalty", value)}
        >
          ${t(`omni.length_${name}`)} ${formatNumber(value, DIGITS)}
        </button>`,
    );
  });
  on(store, "change", draw);
}

/** @typedef {{store: OmniStore, video: HTMLVideoElement, pictures: PictureTaker}} PictureViewOptions */

/** @param {DuplexCall} call @param {PictureViewOptions} options */
export function mountPictureView(call, { store, video, pictures }) {
  const part = (/** @type {string} */ id) => byId(id, HTMLElement);
  const turns = () => call.state.turns;
  const look = () => subtitleLookOf(store);
  const subtitles = mountSubtitles(part("subtitles"), { turns, look });
  const overlay = mountChatOverlay(part("chat-overlay"), { modelTurns: turns, userTurns: () => call.kind.userTurns.turns });
  const bars = mountLevelBars(part("level-bars"), { levels: () => call.levels(), isLive: () => call.isActive });
  const drawFigures = mountView(
    part("figures"),
    () => html`<p class="small soft number">${sentText(pictures.sent(), call.state)}</p>`,
  );
  mountLengthPills(part("length-pills"), store);

  const recordings = late(
    () => import("./recordings.js"),
    ({ mountRecordings }) =>
      mountRecordings(call, { video, look, subtitle: subtitles.text, isAutomatic: () => store.get("record") }),
  );

  call.on("opened", ({ source }) => pictures.attach(source, (base64) => call.session?.sendPicture(base64) ?? false));
  call.on("state", () => {
    drawFigures();
    subtitles.update();
    overlay.update();
  });
  call.on("heard", overlay.update);
  on(store, "change", subtitles.update);
  return {
    async openRecordSettings() {
      (await recordings()).openSettings();
    },
    async prepare() {
      pictures.clear();
      bars.clear();
      await recordings();
    },
  };
}

// Text over the picture: subtitles, and the last turns in fullscreen.

const TICK_MS = 500;
const MS_PER_S = 1_000;
const LINES_SHOWN = 12;

/**
 * Hidden from screen readers, since the conversation is next to the picture.
 * @param {HTMLElement} el
 * @param {{turns: () => readonly TranscriptTurn[], look: () => SubtitleLook}} source
 */
function mountSubtitles(el, { turns, look }) {
  el.setAttribute("aria-hidden", "true");
  const box = el.parentElement ?? el; // in fullscreen the last turns are above the subtitles
  const text = () => subtitleAt(turns(), performance.now());
  const draw = mountView(el, () => {
    const { isOn, heightPercent, bottomPercent, topPercent } = look();
    const now = isOn ? text() : "";
    el.hidden = now === "";
    box.style.setProperty("--subtitle-height", `${heightPercent}%`);
    box.style.setProperty("--subtitle-bottom", String(bottomPercent / 100));
    box.style.setProperty("--subtitle-top", String(topPercent / 100));
    return html`<p class="subtitle-words" .textContent=${now}></p>`;
  });
  setInterval(draw, TICK_MS); // they disappear after a while
  return { update: draw, text };
}

/** @param {HTMLElement} el @param {{modelTurns: () => readonly TranscriptTurn[], userTurns: () => readonly UserTurn[]}} source */
function mountChatOverlay(el, { modelTurns, userTurns }) {
  let count = 0;
  const line = (/** @type {ReturnType<typeof lastTurns>[number]} */ { text, lengthMs, isUser }) =>
    html`<li class="overlay-line" data-who=${isUser ? "user" : "model"}>
      <strong>${t(isUser ? "common.you" : "common.model")}</strong>
      ${isUser ? t("omni.seconds", { seconds: formatNumber(lengthMs / MS_PER_S, 1) }) : text || t("live.no_words")}
    </li>`;
  const draw = mountView(el, () => {
    const lines = lastTurns(modelTurns(), userTurns(), LINES_SHOWN);
    count = lines.length;
    el.hidden = count === 0;
    return html`<div class="overlay-box" role="log" aria-live="off" tabindex="0" aria-label=${t("live.transcript")}>
      <ol class="overlay-list">
        ${lines.map(line)}
      </ol>
    </div>`;
  });
  const box = find(el, "div", HTMLElement);
  return {
    update() {
      const [heightPx, before] = [box.scrollHeight, count];
      draw();
      if (count > 0 && (box.scrollHeight !== heightPx || count !== before)) box.scrollTop = box.scrollHeight;
    },
  };
}
