// @ts-check
/**
 * What the model says, over the picture: subtitles, and in fullscreen the last lines of both.
 */

import { find } from "../../shared/dom.js";
import { formatNumber } from "../../shared/formats.js";
import { t } from "../../shared/i18n.js";
import { html, mountView } from "../../shared/lit.js";
import { lastTurns, subtitleAt } from "../lib/subtitle-text.js";

/** @typedef {import("../lib/subtitle-text.js").SubtitleLook} SubtitleLook */
/** @typedef {import("../lib/unit-log.js").TranscriptTurn} TranscriptTurn */
/** @typedef {import("../lib/user-turns.js").UserTurn} UserTurn */

const TICK_MS = 500;
const MS_PER_S = 1_000;
const LINES_SHOWN = 12;

/**
 * The conversation itself stands beside the picture, so readers skip these.
 *
 * @param {HTMLElement} el
 * @param {{turns: () => ReadonlyArray<TranscriptTurn>, look: () => SubtitleLook}} source
 * @returns {{update: () => void, text: () => string}}
 */
export function mountSubtitles(el, { turns, look }) {
  el.setAttribute("aria-hidden", "true");
  const box = el.parentElement ?? el; // the last lines in fullscreen stand above the subtitles
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
  setInterval(draw, TICK_MS); // they go away by themselves
  return { update: draw, text };
}

/**
 * @param {HTMLElement} el
 * @param {{modelTurns: () => ReadonlyArray<TranscriptTurn>, userTurns: () => ReadonlyArray<UserTurn>}} source
 * @returns {{update: () => void}}
 */
export function mountChatOverlay(el, { modelTurns, userTurns }) {
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
