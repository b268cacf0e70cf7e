// @ts-check
/**
 * The turns of a half-duplex call: how long the user spoke, the answer as it grows, and its figures.
 */

import { fill, h, icon, on, setText } from "../../shared/dom.js";
import { formatNumber } from "../../shared/formats.js";
import { onLangChange, t, tn } from "../../shared/i18n.js";

/** @typedef {import("../lib/half-duplex-state.js").HalfTurn} HalfTurn */

const MS_PER_S = 1_000;
const NEAR_END_PX = 48;

/**
 * @param {HTMLElement} el
 * @returns {{update: (turns: readonly HalfTurn[]) => void}}
 */
export function mountHalfTurns(el) {
  const list = h("ol", { class: "talk", "aria-live": "off", tabindex: 0 });
  const empty = h("p", { class: "talk-empty soft" });
  const jump = h("button", { type: "button", class: "button talk-jump", hidden: true });
  el.classList.add("transcript");
  el.append(empty, list, jump);
  /** @type {{turn: HalfTurn, row: HTMLElement}[]} */
  let rows = [];
  /** @type {readonly HalfTurn[]} */
  let latest = [];
  // An empty list is not measured: that would lay the whole page out before it is first shown.
  const isAtEnd = () => list.childElementCount === 0 || list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END_PX;
  const goToEnd = () => {
    if (list.childElementCount > 0) list.scrollTop = list.scrollHeight;
    jump.hidden = true;
  };
  const draw = () => {
    const wasAtEnd = isAtEnd();
    rows = latest.map((turn) => {
      const known = rows.find((one) => one.turn.startedAtMs === turn.startedAtMs);
      if (known?.turn === turn) return known;
      const row = known?.row ?? h("li", { class: "exchange" });
      fillRow(row, turn);
      return { turn, row };
    });
    const isSame = list.childElementCount === rows.length && rows.every(({ row }, i) => list.children[i] === row);
    if (!isSame)
      fill(
        list,
        rows.map(({ row }) => row),
      );
    empty.hidden = rows.length > 0;
    list.hidden = rows.length === 0;
    if (wasAtEnd) goToEnd();
    else jump.hidden = false;
  };
  const drawAll = () => {
    list.setAttribute("aria-label", t("half.turns"));
    setText(empty, t("half.turns_empty"));
    fill(jump, icon("down"), t("half.newest"));
    rows = [];
    draw();
  };
  on(jump, "click", goToEnd);
  on(list, "scroll", () => {
    if (isAtEnd()) jump.hidden = true;
  });
  onLangChange(drawAll);
  drawAll();
  return {
    update(turns) {
      if (turns === latest) return;
      latest = turns;
      draw();
    },
  };
}

/**
 * @param {HTMLElement} row
 * @param {HalfTurn} turn
 */
function fillRow(row, turn) {
  row.dataset.open = String(!turn.isDone);
  const length = t("half.you_spoke", { s: formatNumber(turn.speechMs / MS_PER_S, 1) });
  const text = turn.text.trim() || (turn.isDone ? t("half.no_words") : "");
  const cut = turn.isInterrupted && h("span", { class: "turn-cut small" }, icon("hand"), t("half.state.interrupted"));
  fill(
    row,
    h(
      "div",
      { class: "turn", dataset: { who: "user" } },
      h(
        "p",
        { class: "turn-head small" },
        h("span", { class: "turn-who" }, t("common.you")),
        h("span", { class: "soft" }, length),
      ),
      turn.userText && h("p", { class: "turn-text", dir: "auto" }, turn.userText),
    ),
    h(
      "div",
      { class: "turn", dataset: { who: "model", open: String(!turn.isDone) } },
      h("p", { class: "turn-head small" }, h("span", { class: "turn-who" }, t("common.model")), cut),
      h("p", { class: turn.text.trim() ? "turn-text" : "turn-text soft" }, text),
      figures(turn),
    ),
  );
}

/** @param {HalfTurn} turn */
function figures({ ttftMs, ttfsMs, tokenStats, elapsedMs, isDone }) {
  /** @type {[string, string][]} */
  const all = [];
  if (ttftMs !== null) all.push([t("half.figure.ttft"), milliseconds(ttftMs)]);
  if (ttfsMs !== null) all.push([t("half.figure.ttfs"), milliseconds(ttfsMs)]);
  if (tokenStats) all.push([t("half.figure.tokens"), tn("half.tokens", tokenStats.generated_tokens)]);
  if (isDone) all.push([t("half.figure.total"), milliseconds(elapsedMs)]);
  if (all.length === 0) return null;
  return h(
    "dl",
    { class: "turn-figures small soft number" },
    all.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** @param {number} valueMs */
function milliseconds(valueMs) {
  return t("half.ms", { n: formatNumber(valueMs) });
}
