/**
 * The last 60 units as columns: stages stacked in ms against the budget, context, buffered audio, gaps.
 *
 * Drawn on a canvas: chart libraries have no stacked columns with a mark per column, redraw all axes
 * each second, and may not be installed.
 */

import { mountPainter, themeColours } from "../../shared/canvas-tools.js";
import { byId, find, html, mountView, on } from "../../shared/lit.js";
import { onLangChange, t } from "../../shared/texts.js";
import { throttled } from "../../shared/async.js";
import { remember, remembered } from "../../shared/memory.js";
import { columnsOf, describe, duplexMetrics, paintTimeline, stepAt, stepByKey } from "../lib/call-texts.js";
import { metricRows, mountCallMeters } from "./meters.js";

/** @import { UnitColumn } from "../lib/call-texts.js" */
/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { SessionState } from "../lib/session-state.js" */
/** @import { MetricsOptions } from "./live-view.js" */

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
    paintTimeline({ ctx, width, height, css: colours.css, columns, chunkMs, picked });
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
  ...["listen", "speak", "interrupt"].map((kind) => [kind, `live.unit.${kind}`]),
  ...["budget", "kv", "ahead", "gap"].map((kind) => [kind, `live.timeline.${kind}`]),
];

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
