// @ts-check
/**
 * What the model said, as segments on the time axis; a click jumps there.
 */

import { fill, h } from "../shared/dom.js";
import { formatClock } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { shareOf, within } from "./time-axis.js";

/** @typedef {import("./unit-plan.js").SpokenTurn} SpokenTurn */
/** @typedef {import("./time-axis.js").View} View */

/**
 * @param {HTMLElement} el
 * @param {{turns: SpokenTurn[], onJump: (atS: number) => void}} options
 */
export function mountTextTrack(el, { turns, onJump }) {
  /** @type {View} */
  let view = { fromS: 0, toS: 1 };
  let shown = "";
  const draw = () => {
    const seen = within(turns, view);
    const key = `${view.fromS}:${view.toS}`;
    if (key === shown) return;
    shown = key;
    fill(el, seen.map((turn) => segment(turn, view, onJump)));
  };
  onLangChange(() => {
    shown = "";
    draw();
  });
  return {
    /** @param {View} wanted */
    update(wanted) {
      view = wanted;
      draw();
    },
  };
}

/**
 * @param {SpokenTurn} turn
 * @param {View} view
 * @param {(atS: number) => void} onJump
 */
function segment({ number, startS, endS, text, isInterrupted }, view, onJump) {
  const label = t("viewer.jump_to", { time: formatClock(startS), text });
  const button = h(
    "button",
    { type: "button", class: "segment", title: text, "aria-label": label, dataset: { turn: number, interrupted: isInterrupted }, on: { click: () => onJump(startS) } },
    h("span", {}, text.trim()),
  );
  const from = Math.max(0, shareOf(view, startS));
  const to = Math.min(1, shareOf(view, endS));
  button.style.left = `${100 * from}%`;
  button.style.width = `${100 * (to - from)}%`;
  return button;
}
