// @ts-check
/**
 * All that the model said, in order; a click jumps there, and what is heard now is marked.
 */

import { fill, h, icon } from "../shared/dom.js";
import { formatClock } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { indexAt } from "./time-axis.js";

/** @typedef {import("./unit-plan.js").SpokenTurn} SpokenTurn */

/**
 * @param {HTMLElement} el
 * @param {{turns: SpokenTurn[], onJump: (atS: number) => void}} options
 */
export function mountTranscript(el, { turns, onJump }) {
  const title = h("h2");
  const list = h("ol", { class: "said-list", tabindex: turns.length > 0 ? 0 : null });
  fill(el, title, list);
  /** @type {HTMLButtonElement[]} */
  let nodes = [];
  let shown = -1;
  const draw = () => {
    title.textContent = t("viewer.said");
    list.setAttribute("aria-label", t("viewer.said"));
    nodes = turns.map((turn) => entry(turn, onJump));
    fill(list, turns.length > 0 ? nodes.map((node) => h("li", {}, node)) : h("li", { class: "empty" }, t("viewer.said_nothing")));
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
