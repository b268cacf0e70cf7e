/** View of half-duplex calls: button, turns and their figures. */

import { formatNumber, getLang, t } from "../../shared/texts.js";
import { guard, html, icon, mountView, nothing, repeat } from "../../shared/lit.js";
import { controlsFor } from "../lib/call-state.js";
import { halfFigures, halfMetrics } from "../lib/call-texts.js";
import { mountTalkList } from "./call-frame.js";
import { metricRows } from "./meters.js";

/** @import { HalfCall } from "../lib/call-kinds.js" */
/** @import { HalfTurn } from "../lib/half-duplex-session.js" */
/** @import { CallButton } from "./call-frame.js" */

const MS_PER_S = 1_000;
const FIGURES_MS = 500;

/** @param {HalfCall} call @returns {CallButton[]} */
export function halfButtons(call) {
  const { canInterrupt, isTalk: isShown } = controlsFor(call.state);
  const isOff = !canInterrupt && call.state.activity !== "thinking";
  return [{ action: "interrupt", isShown, isOff, sign: "hand", label: t("half.stop_answer"), run: () => call.interrupt() }];
}

/** @param {HTMLElement} el a `dl` @param {HalfCall} call @param {number} maxKvTokens */
export function mountHalfFigures(el, call, maxKvTokens) {
  el.classList.add("metrics");
  const draw = mountView(el, () => {
    const { state } = call;
    const leftS = call.session?.remainingS ?? null;
    return metricRows(halfMetrics(state, leftS, maxKvTokens));
  });
  setInterval(draw, FIGURES_MS);
  return draw;
}

const HALF_WORDS = { labelKey: "live.transcript", emptyKey: "half.turns_empty", newestKey: "live.new_text" };

/** Turns of half duplex: duration of the user's speech, the growing answer, and its figures. @param {HTMLElement} el @param {HalfCall} call */
export function mountHalfTurns(el, call) {
  /** @type {readonly HalfTurn[]} */ let shown = [];
  const draw = mountTalkList(el, HALF_WORDS, () => ({
    isEmpty: call.state.turns.length === 0,
    rows: repeat(
      call.state.turns,
      ({ startedAtMs }) => startedAtMs,
      (turn) => guard([turn, getLang()], () => exchange(turn)),
    ),
  }));
  return () => {
    if (call.state.turns === shown) return;
    shown = call.state.turns;
    draw(true);
  };
}

/** @param {HalfTurn} turn */
function exchange(turn) {
  const length = t("half.you_spoke", { s: formatNumber(turn.speechMs / MS_PER_S, 1) });
  const isOpen = String(!turn.isDone);
  const words = turn.text.trim();
  const cut = html`<span class="turn-cut small">${icon("hand")}${t("live.state.interrupted")}</span>`;
  return html`<li class="exchange" data-open=${isOpen}>
    <div class="turn" data-who="user">
      <p class="turn-head small"><span class="turn-who">${t("common.you")}</span><span class="soft">${length}</span></p>
      ${turn.userText ? html`<p class="turn-text" dir="auto" .textContent=${turn.userText}></p>` : nothing}
    </div>
    <div class="turn" data-who="model" data-open=${isOpen}>
      <p class="turn-head small"><span class="turn-who">${t("common.model")}</span>${turn.isInterrupted ? cut : nothing}</p>
      <p class="turn-text ${words ? "" : "soft"}" .textContent=${words || (turn.isDone ? t("live.no_words") : "")}></p>
      ${turnFigures(turn)}
    </div>
  </li>`;
}

/** @param {HalfTurn} turn */
function turnFigures(turn) {
  const all = halfFigures(turn);
  if (all.length === 0) return nothing;
  return html`<dl class="turn-figures small soft number">
    ${all.map(
      ([name, text]) =>
        html`<div>
          <dt>${t(`half.figure.${name}`)}</dt>
          <dd>${text}</dd>
        </div>`,
    )}
  </dl>`;
}
