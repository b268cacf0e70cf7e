// @ts-check
/**
 * The figures of a half-duplex call: state, turn, remaining time, queue, memory.
 */

import { fill, h, setText } from "../../shared/dom.js";
import { formatClock, formatNumber } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { halfCallStateOf } from "../lib/half-look.js";

/** @typedef {import("../lib/half-duplex-state.js").HalfState} HalfState */

const TICK_MS = 500;
const NEARLY_OVER_S = 30;
const NAMES = /** @type {const} */ (["state", "turn", "remaining", "queue", "memory", "session"]);

/**
 * @param {HTMLElement} el a `dl`
 * @param {{remainingS: () => number | null, maxKvTokens: number}} source
 */
export function mountHalfFigures(el, { remainingS, maxKvTokens }) {
  const rows = NAMES.map((name) => {
    const term = h("dt");
    const value = h("span", { class: "metric-value number" });
    const node = h("div", { class: "metric", dataset: { figure: name } }, term, h("dd", {}, value));
    return { name, term, value, node };
  });
  el.classList.add("metrics");
  fill(
    el,
    rows.map(({ node }) => node),
  );

  /** @type {HalfState | null} */
  let state = null;
  /** @param {typeof NAMES[number]} name @param {HalfState} now */
  const textOf = (name, now) => {
    const leftS = remainingS();
    switch (name) {
      case "state":
        return t(`half.state.${halfCallStateOf(now)}`);
      case "turn":
        return formatNumber(now.turnCount);
      case "remaining":
        return leftS === null ? "—" : formatClock(Math.ceil(leftS));
      case "queue":
        return now.queue ? t("half.place", { n: formatNumber(now.queue.position) }) : "—";
      case "memory":
        return now.kvTokens ? t("half.memory", { n: formatNumber(now.kvTokens), of: formatNumber(maxKvTokens) }) : "—";
      case "session":
        return now.sessionId || "—";
    }
  };
  const draw = () => {
    if (!state) return;
    const now = state;
    for (const { name, value } of rows) setText(value, textOf(name, now));
    const leftS = remainingS();
    const isNear = leftS !== null && leftS <= NEARLY_OVER_S;
    rows.find(({ name }) => name === "remaining")?.node.setAttribute("data-grade", isNear ? "caution" : "");
  };
  const drawNames = () => {
    for (const { name, term } of rows) setText(term, t(`half.figure.${name}`));
    draw();
  };
  const endLang = onLangChange(drawNames);
  const timer = setInterval(draw, TICK_MS);
  drawNames();
  return {
    /** @param {HalfState} next */
    update(next) {
      state = next;
      draw();
    },
    close() {
      clearInterval(timer);
      endLang();
    },
  };
}
