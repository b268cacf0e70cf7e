/** Levels and metrics of a call (scrolling bars, meters, lists of values), and the view of half-duplex calls. */

import { mountPainter, themeColours } from "../../shared/canvas-tools.js";
import { mountLevelMeter } from "../../shared/level-meter.js";
import { byId, find, guard, html, icon, mountView, nothing, repeat } from "../../shared/lit.js";
import { formatNumber, getLang, MS_PER_S, t } from "../../shared/texts.js";
import { levelShare } from "../../shared/pcm.js";
import { controlsFor } from "../lib/call-state.js";
import { halfFigures, halfMetrics, levelKindOf } from "../lib/call-texts.js";
import { mountTalkList } from "./call-frame.js";

/** @import { LevelKind, Metric } from "../lib/call-texts.js" */
/** @import { DuplexCall, HalfCall } from "../lib/call-kinds.js" */
/** @import { HalfTurn } from "../lib/half-duplex-session.js" */

const TICK_MS = 50;
const KEPT = 1_200; // a minute, more than any screen shows
const GAP_PX = 2;
const LEAST_PX = 2;
const CLOSED_ALPHA = 0.4;

/** @type {Readonly<Record<LevelKind, string>>} */
const COLOURS = Object.freeze({ quiet: "idle", speech: "listen", answer: "speak", closed: "line-strong" });

function runningBars(/** @type {HTMLCanvasElement} */ canvas, /** @type {number} */ barPx) {
  /** @type {{share: number, kind: LevelKind}[]} */ let history = [];
  const colours = themeColours(canvas);
  const painter = mountPainter(canvas, (ctx, width, height) => {
    const stepPx = barPx + GAP_PX;
    const count = Math.min(history.length, Math.ceil(width / stepPx));
    for (let age = 0; age < count; age += 1) {
      const { share, kind } = history[history.length - 1 - age];
      const heightPx = Math.max(LEAST_PX, share * height);
      ctx.fillStyle = colours.css(COLOURS[kind], kind === "closed" ? CLOSED_ALPHA : 1);
      ctx.beginPath();
      ctx.roundRect(width - (age + 1) * stepPx, (height - heightPx) / 2, barPx, heightPx, barPx / 2);
      ctx.fill();
    }
  });
  return {
    /** @param {number} share of the height, 0 to 1 @param {LevelKind} kind */
    push(share, kind) {
      history = [...history.slice(1 - KEPT), { share, kind }];
      painter.request();
    },
    clear() {
      history = [];
      painter.request();
    },
  };
}

/** Levels of user and model. @param {HTMLElement} el @param {DuplexCall} call */
export function mountLevelBars(el, call) {
  mountView(el, () => html`<canvas class="level-bars" role="img" aria-label=${t("omni.levels")}></canvas>`);
  const bars = runningBars(find(el, "canvas", HTMLCanvasElement), 3);
  setInterval(() => {
    if (!call.isActive || document.hidden) return;
    const { inputRms, outputRms } = call.levels();
    const [heard, said] = [levelShare(inputRms), levelShare(outputRms)];
    bars.push(Math.max(heard, said), said > heard ? "answer" : "speech");
  }, TICK_MS);
  return { clear: bars.clear };
}

/** @param {HTMLElement} el @param {HalfCall} call */
export function mountHalfWave(el, call) {
  /** @type {LevelKind | "off"} */ let hears = "off";
  el.classList.add("wave");
  const draw = mountView(
    el,
    () =>
      html`<canvas class="wave-canvas" role="img" aria-label=${t("half.wave")}></canvas>
        <p class="wave-lamp badge" role="status" data-hears=${hears}>
          <span class="dot"></span><span>${t(`half.hears.${hears}`)}</span>
        </p>`,
  );
  const bars = runningBars(find(el, "canvas", HTMLCanvasElement), 4);
  setInterval(() => {
    const now = call.state;
    const kind = now.phase === "running" ? levelKindOf(now) : "off";
    if (kind !== "off") {
      const { inputRms, outputRms } = call.levels();
      bars.push(levelShare(kind === "answer" ? outputRms : inputRms), kind);
    }
    if (kind === hears) return;
    hears = kind;
    draw();
  }, TICK_MS);
  return { clear: bars.clear };
}

/**
 * Meters of user and model.
 * @param {DuplexCall | HalfCall} call
 * @returns {(nowMs: number) => boolean} draws them; whether they are still moving
 */
export function mountCallMeters(call) {
  const input = mountLevelMeter(byId("input-meter"), { labelKey: "common.you", sign: "mic" });
  const output = mountLevelMeter(byId("output-meter"), { labelKey: "common.model", sign: "speaker", kind: "speak" });
  return (nowMs) => {
    const { inputRms, outputRms } = call.levels();
    return [input.update(inputRms, nowMs), output.update(outputRms, nowMs)].includes(true);
  };
}

// List of metrics, with grades shown by colour, shape and text.

/** Rows of a `dl`. @param {readonly Metric[]} metrics */
export const metricRows = (metrics) =>
  metrics.map(
    ({ name, label, text, grade = "none" }) =>
      html`<div class="metric" data-row=${name} data-grade=${grade}>
        <dt>${label}</dt>
        <dd>
          <span class="metric-mark" aria-hidden="true"></span><span class="metric-value number">${text}</span
          ><span class="visually-hidden">${grade === "none" ? "" : ` (${t(`live.grade.${grade}`)})`}</span>
        </dd>
      </div>`,
  );

const FIGURES_MS = 500;

export function halfButtons(/** @type {HalfCall} */ call) {
  const { canInterrupt, isTalk: isShown } = controlsFor(call.state);
  const isIdle = !canInterrupt && call.state.activity !== "thinking";
  return [{ action: "interrupt", isShown, isIdle, sign: "hand", label: t("half.stop_answer"), run: () => call.interrupt() }];
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

/** Turns of half duplex: duration of the user's speech, the growing answer, and its figures. @param {HTMLElement} el @param {HalfCall} call */
export function mountHalfTurns(el, call) {
  /** @type {readonly HalfTurn[]} */ let shown = [];
  const draw = mountTalkList(el, "half.turns_empty", () => ({
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

function exchange(/** @type {HalfTurn} */ turn) {
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
      <p class="turn-text ${words ? "" : "soft"}" dir="auto" .textContent=${words || (turn.isDone ? t("live.no_words") : "")}></p>
      ${turnFigures(turn)}
    </div>
  </li>`;
}

function turnFigures(/** @type {HalfTurn} */ turn) {
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
