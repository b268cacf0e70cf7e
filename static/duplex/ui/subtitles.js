// @ts-check
/**
 * What the model says, over the picture: subtitles, and in fullscreen the last lines of both.
 */

import { fill, h, setText } from "../../shared/dom.js";
import { formatNumber } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";
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
  const words = h("p", { class: "subtitle-words" });
  el.setAttribute("aria-hidden", "true");
  el.append(words);
  const box = el.parentElement ?? el; // the last lines in fullscreen stand above the subtitles
  const text = () => subtitleAt(turns(), performance.now());
  const draw = () => {
    const { isOn, heightPercent, bottomPercent, topPercent } = look();
    const now = isOn ? text() : "";
    el.hidden = now === "";
    setText(words, now);
    box.style.setProperty("--subtitle-height", `${heightPercent}%`);
    box.style.setProperty("--subtitle-bottom", String(bottomPercent / 100));
    box.style.setProperty("--subtitle-top", String(topPercent / 100));
  };
  setInterval(draw, TICK_MS); // they go away by themselves
  draw();
  return { update: draw, text };
}

/**
 * @param {HTMLElement} el
 * @param {{modelTurns: () => ReadonlyArray<TranscriptTurn>, userTurns: () => ReadonlyArray<UserTurn>}} source
 * @returns {{update: () => void}}
 */
export function mountChatOverlay(el, { modelTurns, userTurns }) {
  const list = h("ol", { class: "overlay-list" });
  const box = h("div", { class: "overlay-box", role: "log", "aria-live": "off", tabindex: 0 }, list);
  el.append(box);
  let shown = "";
  const draw = () => {
    const lines = lastTurns(modelTurns(), userTurns(), LINES_SHOWN);
    el.hidden = lines.length === 0;
    const now = JSON.stringify(lines);
    if (now === shown) return;
    shown = now;
    fill(
      list,
      lines.map(({ text, lengthMs, isUser }) =>
        h(
          "li",
          { class: "overlay-line", dataset: { who: isUser ? "user" : "model" } },
          h("strong", {}, t(isUser ? "common.you" : "common.model")),
          " ",
          isUser ? t("omni.seconds", { seconds: formatNumber(lengthMs / MS_PER_S, 1) }) : text || t("live.no_words"),
        ),
      ),
    );
    if (lines.length > 0) box.scrollTop = box.scrollHeight;
  };
  onLangChange(() => {
    box.setAttribute("aria-label", t("live.transcript"));
    shown = "";
    draw();
  });
  box.setAttribute("aria-label", t("live.transcript"));
  draw();
  return { update: draw };
}
