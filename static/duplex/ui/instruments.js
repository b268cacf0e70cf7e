/**
 * The last 60 units as columns: stages stacked in ms against the budget, context, buffered audio, gaps.
 *
 * Drawn on a canvas: chart libraries have no stacked columns with a mark per column, redraw all axes
 * each second, and may not be installed.
 */

import { mountPainter, themeColours } from "../../shared/canvas-tools.js";
import { byId, find, html, mountView, on } from "../../shared/lit.js";
import { formatNumber, onLangChange, t } from "../../shared/texts.js";
import { throttled } from "../../shared/async.js";
import { remember, remembered } from "../../shared/memory.js";
import {
  columnLeft,
  columnsOf,
  columnWidth,
  describe,
  duplexMetrics,
  heightMs,
  STAGES,
  stepAt,
  stepByKey,
} from "../lib/call-texts.js";
import { metricRows, mountCallMeters } from "./meters.js";

/** @import { UnitColumn } from "../lib/call-texts.js" */
/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { SessionState } from "../lib/session-state.js" */
/** @import { MetricsOptions } from "./live-view.js" */

/** Opacity of each stage's colour, from bottom to top. */
const STAGE_ALPHA = Object.freeze({ read: 0.95, think: 0.75, voice: 0.55, sound: 0.38, rest: 0.22 });
const MARK_ROOM_PX = 18; // below the columns: one mark each
const SIGNS = Object.freeze({ listen: "ring", speak: "disc", interrupt: "cross" });

/** @param {HTMLElement} el @returns {(state: SessionState, maxKvTokens: number) => void} */
function mountUnitTimeline(el) {
  /** @type {UnitColumn[]} */ let columns = [];
  /** @type {SessionState["units"]} */ let units = [];
  /** Selected step; null: the last unit. @type {number | null} */ let picked = null;
  let chunkMs = 1_000;

  el.classList.add("timeline");
  const drawReadout = mountView(el, () => {
    const column = columns.find((one) => one.step === picked) ?? columns.at(-1);
    const words = column ? describe(column, chunkMs) : t("live.timeline.empty");
    return html`<div
        class="timeline-plot"
        role="slider"
        tabindex="0"
        aria-label=${t("live.timeline.label")}
        aria-valuetext=${words}
        aria-valuemin=${columns[0]?.step ?? 0}
        aria-valuemax=${columns.at(-1)?.step ?? 0}
        aria-valuenow=${column?.step ?? 0}
        aria-disabled=${String(columns.length === 0)}
        @pointermove=${onPointer}
        @pointerleave=${() => pick(null)}
        @blur=${() => pick(null)}
        @keydown=${onKey}
      >
        <canvas class="timeline-canvas"></canvas>
      </div>
      <p class="timeline-readout small number">${words}</p>
      <ul class="timeline-legend small">
        ${LEGEND.map(([kind, key]) => html`<li><span class="legend-sign" data-kind=${kind}></span><span>${t(key)}</span></li>`)}
      </ul>`;
  });
  const canvas = find(el, "canvas", HTMLCanvasElement);
  const colours = themeColours(el);
  const painter = mountPainter(canvas, (ctx, width, height) => {
    paintTimeline({ ctx, width, height, colours, columns, chunkMs, picked });
  });
  onLangChange(painter.request);

  function pick(/** @type {number | null} */ step) {
    if (picked === step) return;
    picked = step;
    drawReadout();
    painter.request();
  }
  function onPointer(/** @type {PointerEvent} */ event) {
    const { left, width } = canvas.getBoundingClientRect();
    pick(stepAt(columns, event.clientX - left, width));
  }
  function onKey(/** @type {KeyboardEvent} */ event) {
    const next = stepByKey(columns, picked, event.key);
    if (next === undefined) return;
    event.preventDefault();
    pick(next);
  }

  return (state, maxKvTokens) => {
    if (state.units === units) return;
    units = state.units;
    chunkMs = state.chunkMs;
    columns = columnsOf(units, { chunkMs, maxKvTokens });
    if (picked !== null && !columns.some((column) => column.step === picked)) picked = null;
    drawReadout();
    painter.request();
  };
}

const LEGEND = [
  ["listen", "live.unit.listen"],
  ["speak", "live.unit.speak"],
  ["interrupt", "live.unit.interrupt"],
  ["budget", "live.timeline.budget"],
  ["kv", "live.timeline.kv"],
  ["ahead", "live.timeline.ahead"],
  ["gap", "live.timeline.gap"],
];

/** @typedef {{ctx: CanvasRenderingContext2D, width: number, height: number, colours: ReturnType<typeof themeColours>,
 *   columns: UnitColumn[], chunkMs: number, picked: number | null}} Scene
 */

function paintTimeline(/** @type {Scene} */ scene) {
  const { ctx, width, height, columns, chunkMs } = scene;
  const groundY = height - MARK_ROOM_PX;
  const topMs = heightMs(columns, chunkMs);
  const yOf = (/** @type {number} */ ms) => groundY - (Math.min(ms, topMs) / topMs) * (groundY - 4);
  ctx.lineWidth = 1;
  ctx.strokeStyle = scene.colours.css("line");
  line(ctx, [0, groundY + 0.5], [width, groundY + 0.5]);
  const columnPx = columnWidth(width);
  columns.forEach((column, index) => {
    paintColumn(scene, column, columnLeft(index, columns.length, width), columnPx, groundY, yOf);
  });
  paintBudget(scene, yOf(chunkMs));
  paintLines(scene, columnPx, groundY);
}

/**
 * @param {Scene} scene
 * @param {UnitColumn} column
 * @param {number} left
 * @param {number} columnPx
 * @param {number} groundY
 * @param {(ms: number) => number} yOf
 */
function paintColumn({ ctx, colours, picked }, column, left, columnPx, groundY, yOf) {
  const gapPx = columnPx > 7 ? 2 : 1;
  const inner = columnPx - gapPx;
  if (picked === column.step) {
    ctx.fillStyle = colours.css("ink", 0.1);
    ctx.fillRect(left - gapPx / 2, 0, columnPx, groundY + MARK_ROOM_PX);
  }
  let reachedMs = 0;
  for (const stage of STAGES) {
    const ms = column.stagesMs[stage];
    const bottom = yOf(reachedMs);
    reachedMs += ms;
    const top = yOf(reachedMs);
    ctx.fillStyle = colours.css(column.kind, STAGE_ALPHA[stage]);
    ctx.fillRect(left, top, inner, bottom - top);
  }
  if (column.gapMs > 0) {
    ctx.fillStyle = colours.css("bad");
    ctx.beginPath();
    ctx.moveTo(left - 4, 0);
    ctx.lineTo(left + 4, 0);
    ctx.lineTo(left, 8);
    ctx.fill();
    ctx.fillRect(left - 0.5, 0, 1, groundY);
  }
  ctx.strokeStyle = colours.css(column.kind);
  ctx.fillStyle = ctx.strokeStyle;
  paintSign(ctx, SIGNS[column.kind], left + inner / 2, groundY + MARK_ROOM_PX / 2 + 1, Math.min(4, inner / 2));
}

/** @param {CanvasRenderingContext2D} ctx @param {string} sign @param {number} x @param {number} y @param {number} radius */
function paintSign(ctx, sign, x, y, radius) {
  ctx.lineWidth = 1.5;
  if (sign === "cross") {
    line(ctx, [x - radius, y - radius], [x + radius, y + radius]);
    line(ctx, [x - radius, y + radius], [x + radius, y - radius]);
    return;
  }
  ctx.beginPath();
  ctx.arc(x, y, radius * 0.85, 0, 2 * Math.PI);
  if (sign === "disc") ctx.fill();
  else ctx.stroke();
}

function paintBudget(/** @type {Scene} */ { ctx, width, colours, chunkMs }, /** @type {number} */ y) {
  ctx.setLineDash([6, 4]);
  ctx.lineWidth = 1.5;
  ctx.strokeStyle = colours.css("ink-soft");
  line(ctx, [0, y], [width, y]);
  ctx.setLineDash([]);
  ctx.fillStyle = colours.css("ink-soft");
  ctx.font = `12px ${getComputedStyle(ctx.canvas).fontFamily}`;
  ctx.fillText(t("viewer.ms", { n: formatNumber(chunkMs) }), 0, y - 4);
}

/** Lines of context in use and buffered audio. @param {Scene} scene @param {number} columnPx @param {number} groundY */
function paintLines({ ctx, width, colours, columns }, columnPx, groundY) {
  const at = (/** @type {number} */ index, /** @type {number} */ share) => {
    const x = columnLeft(index, columns.length, width) + columnPx / 2;
    return /** @type {[number, number]} */ ([x, groundY - share * (groundY - 6)]);
  };
  ctx.lineWidth = 2;
  ctx.strokeStyle = colours.css("caution");
  line(ctx, ...columns.map(({ kvShare }, index) => at(index, kvShare)));
  ctx.setLineDash([2, 4]);
  ctx.strokeStyle = colours.css("ink");
  line(ctx, ...columns.map(({ aheadShare }, index) => at(index, aheadShare)));
  ctx.setLineDash([]);
}

function line(/** @type {CanvasRenderingContext2D} */ ctx, /** @type {[number, number][]} */ ...points) {
  ctx.beginPath();
  for (const [x, y] of points) ctx.lineTo(x, y);
  ctx.stroke();
}

// Live metrics below the stage: levels, timeline of units, figures.

const INSTRUMENTS_KEY = "live_instruments";
const METRICS_MS = 250;

/** @param {DuplexCall} call @param {MetricsOptions} options @returns {() => void} draws them */
export function mountInstruments(call, { maxKvTokens, modelName, hasVision = false }) {
  const panel = byId("instruments", HTMLDetailsElement);
  const drawMeters = mountCallMeters(call);
  const drawTimeline = mountUnitTimeline(byId("timeline"));
  const drawMetrics = mountView(byId("metrics"), () => {
    const extra = { maxKvTokens: maxKvTokens(), delayMs: call.kind.delayMs, modelName: modelName(), hasVision };
    return html`<dl class="metrics">${metricRows(duplexMetrics(call.state, extra))}</dl>`;
  });
  panel.open = remembered(INSTRUMENTS_KEY) !== "closed";
  on(panel, "toggle", () => {
    remember(INSTRUMENTS_KEY, panel.open ? "open" : "closed");
    update();
  });

  let frame = 0;
  const draw = (/** @type {number} */ nowMs) => {
    frame = 0;
    const areMoving = drawMeters(nowMs);
    if ((call.isActive || areMoving) && panel.open) frame = requestAnimationFrame(draw);
  };
  const drawMetricsSoon = throttled(drawMetrics, METRICS_MS);
  const update = () => {
    if (!panel.open) return;
    drawTimeline(call.state, maxKvTokens());
    drawMetricsSoon();
    if (frame === 0) frame = requestAnimationFrame(draw);
  };
  return update;
}
