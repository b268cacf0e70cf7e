// @ts-check
/** What the page of a half-duplex call shows: stage, buttons, turns, figures, problems. */

import { formatNumber } from "../../shared/formats.js";
import { getLang, t } from "../../shared/texts.js";
import { guard, html, icon, mountView, nothing, repeat } from "../../shared/lit.js";
import { mountNotice } from "../../shared/notice.js";
import { halfCallStateOf, halfControlsFor, orbStateOf, STATE_ICONS } from "../lib/call-state.js";
import { START_STYLE, STOP_STYLE, mountCallControls, mountStageFrame, mountTalkList } from "./call-frame.js";
import { metricRows } from "./meters.js";
import { halfFigures, halfMetrics } from "../lib/call-texts.js";

/** @import { NoticeAction } from "../../shared/notice.js" */
/** @import { LiveProblem, NextStep } from "../lib/call-state.js" */
/** @import { HalfCall } from "../lib/call-kinds.js" */
/** @import { HalfTurn } from "../lib/half-duplex.js" */

const MS_PER_S = 1_000;
const TICK_MS = 500;

/** @param {HTMLElement} el @param {HalfCall} call */
export function mountHalfStage(el, call) {
  return mountStageFrame(el, {
    levels: () => call.levels(),
    lengthMs() {
      const { preparedAtMs: startMs, endedAtMs } = call.state;
      return startMs === null ? null : (endedAtMs ?? performance.now()) - startMs;
    },
    look() {
      const callState = halfCallStateOf(call.state);
      const isHushed = call.state.isMicMuted && (callState === "listening" || callState === "hearing");
      el.dataset.activity = callState;
      return {
        callState: orbStateOf(callState),
        sign: callState === "idle" ? "turns" : STATE_ICONS[callState],
        word: t(`half.state.${callState}`),
        hint: t(isHushed ? "half.hint.muted" : `half.hint.${callState}`),
      };
    },
  });
}

/** @param {HTMLElement} el @param {HalfCall} call @param {() => void} start */
export function mountHalfControls(el, call, start) {
  return mountCallControls(el, "half.controls", () => {
    const { state, devices } = call;
    const can = halfControlsFor(state, devices.isStarting);
    const [isShown, isMuted] = [can.isTalk, devices.isMuted];
    const startKey = state.phase === "ended" ? "half.start_again" : "half.start";
    const stopKey = can.isTalk || state.phase === "stopping" ? "half.end" : "common.cancel";
    const mute = { sign: isMuted ? "mic-off" : "mic", label: t("half.mute"), isPressed: isMuted };
    return [
      { action: "start", style: START_STYLE, isShown: can.canStart, sign: "mic", label: t(startKey), run: start },
      { action: "mute", isShown, ...mute, run: () => call.setMuted(!call.devices.isMuted) },
      {
        ...{ action: "interrupt", isShown, sign: "hand", label: t("half.stop_answer"), isOff: !can.canInterrupt },
        run: () => call.interrupt(),
      },
      {
        ...{ action: "stop", style: STOP_STYLE, isShown: can.isStopShown, sign: "stop", label: t(stopKey), isOff: !can.canStop },
        run: () => call.stop(),
      },
    ];
  });
}

/** @param {HTMLElement} el a `dl` @param {HalfCall} call @param {number} maxKvTokens */
export function mountHalfFigures(el, call, maxKvTokens) {
  el.classList.add("metrics");
  const draw = mountView(el, () => {
    const { state } = call;
    const leftS = call.session?.remainingS ?? null;
    return metricRows(halfMetrics(state, leftS, maxKvTokens));
  });
  setInterval(draw, TICK_MS);
  return draw;
}

const TURN_WORDS = { labelKey: "half.turns", emptyKey: "half.turns_empty", newestKey: "half.newest" };

/** How long the user spoke, the answer as it grows, and its figures. @param {HTMLElement} el @param {HalfCall} call */
export function mountHalfTurns(el, call) {
  /** @type {readonly HalfTurn[]} */
  let shown = [];
  const draw = mountTalkList(el, TURN_WORDS, () => ({
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
  const cut = html`<span class="turn-cut small">${icon("hand")}${t("half.state.interrupted")}</span>`;
  return html`<li class="exchange" data-open=${isOpen}>
    <div class="turn" data-who="user">
      <p class="turn-head small"><span class="turn-who">${t("common.you")}</span><span class="soft">${length}</span></p>
      ${turn.userText ? html`<p class="turn-text" dir="auto" .textContent=${turn.userText}></p>` : nothing}
    </div>
    <div class="turn" data-who="model" data-open=${isOpen}>
      <p class="turn-head small"><span class="turn-who">${t("common.model")}</span>${turn.isInterrupted ? cut : nothing}</p>
      <p class="turn-text ${words ? "" : "soft"}" .textContent=${words || (turn.isDone ? t("half.no_words") : "")}></p>
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

const STATUS_CODES = new Set(["offline", "worker_loading", "no_worker"]);

/**
 * @param {{problem: HTMLElement, note: HTMLElement}} places `problem` ended or prevents the call, `note` does not
 * @param {Partial<Record<NextStep, () => void>>} run
 */
export function mountCallNotes(places, run) {
  const problem = mountNotice(places.problem);
  const note = mountNotice(places.note);
  const noteCode = () => places.note.dataset.code ?? "";
  /** @type {Partial<Record<NextStep, NoticeAction>>} */
  const actionsByStep = {
    retry: { label: () => t("common.retry"), run: run.restart },
    restart: { label: () => t("half.start_again"), run: run.restart },
    reconnect: { label: () => t("common.retry"), run: run.reconnect },
    home: { label: () => t("half.go_home"), href: "/" },
    check: { label: () => t("nav.check"), href: "/check" },
  };
  /** @param {LiveProblem} found */
  const show = ({ code, message, kind, steps }) => {
    const actions = steps.flatMap((step) => actionsByStep[step] ?? []);
    if (kind === "caution" && actions.length === 0) note.show({ code, message }, { kind });
    else problem.show({ code, message }, { kind, actions });
  };
  return {
    show,
    /** @param {string} code is over */
    solve(code) {
      if (code === noteCode()) note.clear();
      if (code === places.problem.dataset.code) problem.clear();
    },
    /** Before the start: what the server lacks. @param {string | null} code */
    showStatus(code) {
      if (code === null && STATUS_CODES.has(noteCode())) note.clear();
      else if (code !== null && code !== noteCode()) show({ code, message: "", kind: "caution", steps: [] });
    },
    clear() {
      problem.clear();
      note.clear();
    },
  };
}
