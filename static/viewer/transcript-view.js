// @ts-check
/**
 * All that was said, in order, as far as it is known in words; a click jumps there, and what the model says now is marked.
 */

import { fill, h, icon } from "../shared/dom.js";
import { formatClock } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { indexAt } from "./time-axis.js";

/** @typedef {import("./unit-plan.js").SpokenTurn} SpokenTurn */

/**
 * @param {HTMLElement} el
 * @param {{plan: import("./unit-plan.js").Plan, onJump: (atS: number) => void}} options
 */
export function mountTranscript(el, { plan: { turns, userWords }, onJump }) {
  const title = h("h2");
  const isEmpty = turns.length + userWords.length === 0;
  const list = h("ol", { class: "said-list", tabindex: isEmpty ? null : 0 });
  fill(el, title, list);
  /** @type {HTMLButtonElement[]} */
  let nodes = [];
  let shown = -1;
  const draw = () => {
    title.textContent = t("viewer.said");
    list.setAttribute("aria-label", t("viewer.said"));
    nodes = turns.map((turn) => entry(turn, onJump));
    const all = [
      ...turns.map(({ startS }, index) => ({ startS, node: nodes[index] })),
      ...userWords.map((words) => ({ startS: words.startS, node: userEntry(words, onJump) })),
    ].sort((one, other) => one.startS - other.startS);
    fill(list, isEmpty ? h("li", { class: "empty" }, t("viewer.said_nothing")) : all.map(({ node }) => h("li", {}, node)));
    shown = -1;
  };
  onLangChange(draw);
  draw();
  return {
    /** @param {number} atS @param {boolean} isPlaying */
    update(atS, isPlaying) {
      const index = indexAt(turns, atS + 1e-6, ({ startS }) => startS);
      const now = index >= 0 && atS <= turns[index].endS ? index : -1;
      if (now === shown) return;
      nodes[shown]?.removeAttribute("aria-current");
      nodes[now]?.setAttribute("aria-current", "true");
      shown = now;
      if (isPlaying && nodes[now]) scrollInside(list, nodes[now]);
    },
  };
}

/** Scrolls the list alone, never the page. @param {HTMLElement} list @param {HTMLElement} node */
function scrollInside(list, node) {
  const top = node.offsetTop - list.offsetTop;
  if (top < list.scrollTop || top + node.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top;
}

/** @param {import("./unit-plan.js").UserWords} words @param {(atS: number) => void} onJump */
function userEntry({ startS, text, isTyped }, onJump) {
  return h(
    "button",
    { type: "button", class: "said", dataset: { who: "user" }, on: { click: () => onJump(startS) } },
    h("span", { class: "small soft number" }, formatClock(startS)),
    h("span", { class: "said-text", dir: "auto" }, h("strong", { class: "small said-who" }, t(isTyped ? "viewer.you_typed" : "common.you")), " ", text),
  );
}

/** @param {SpokenTurn} turn @param {(atS: number) => void} onJump */
function entry({ number, startS, text, isInterrupted }, onJump) {
  return h(
    "button",
    { type: "button", class: "said", dataset: { turn: number }, on: { click: () => onJump(startS) } },
    h("span", { class: "small soft number" }, formatClock(startS)),
    h("span", { class: "said-text" }, text.trim()),
    isInterrupted && h("span", { class: "said-cut", title: t("viewer.interrupted") }, icon("hand"), h("span", { class: "visually-hidden" }, t("viewer.interrupted"))),
  );
}
