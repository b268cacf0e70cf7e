/** Live metrics below the stage: levels, the last 60 units as columns against their budget with context and gaps, figures. */

import { byId, html, mountView, on, repeat } from "../../shared/lit.js";
import { formatNumber, t } from "../../shared/texts.js";
import { throttled } from "../../shared/async.js";
import { remember, remembered } from "../../shared/memory.js";
import { columnsOf, COLUMNS_SHOWN, describe, duplexMetrics, heightMs, STAGES, stepByKey } from "../lib/call-texts.js";
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
  const draw = mountView(el, () => {
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
        ${unitsView(columns, chunkMs, picked)}
      </div>
      <p class="timeline-readout small number">${words}</p>
      <ul class="timeline-legend small">
        ${LEGEND.map(([kind, key]) => html`<li><span class="legend-sign" data-kind=${kind}></span><span>${t(key)}</span></li>`)}
      </ul>`;
  });

  function pick(/** @type {number | null} */ step) {
    if (picked === step) return;
    picked = step;
    draw();
  }
  function onPointer(/** @type {PointerEvent} */ { clientX, clientY }) {
    const unit = document.elementFromPoint(clientX, clientY)?.closest("[data-step]");
    pick(unit ? Number(unit.getAttribute("data-step")) : null);
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
    draw();
  };
}

/** The newest column stands at the right edge. @param {UnitColumn[]} columns @param {number} chunkMs @param {number | null} picked */
function unitsView(columns, chunkMs, picked) {
  const topMs = heightMs(columns, chunkMs);
  const left = COLUMNS_SHOWN - columns.length + 0.5;
  const line = (/** @type {"kvShare" | "aheadShare"} */ share) =>
    columns.map((column, index) => `${left + index},${1 - column[share]}`).join(" ");
  const unit = (/** @type {UnitColumn} */ { step, kind, stagesMs, gapMs }) =>
    html`<div
      class="unit"
      data-step=${step}
      data-kind=${kind}
      data-picked=${String(step === picked)}
      data-gap=${String(gapMs > 0)}
    >
      <div class="unit-bar">
        ${STAGES.map((stage) => html`<i data-stage=${stage} .style=${`height: ${(100 * stagesMs[stage]) / topMs}%`}></i>`)}
      </div>
      <span class="legend-sign" data-kind=${kind}></span>
    </div>`;
  return html`<div class="units" .style=${`--budget: ${chunkMs / topMs}`}>
    <span class="units-budget small">${t("viewer.ms", { n: formatNumber(chunkMs) })}</span>
    ${repeat(columns, ({ step }) => step, unit)}
    <svg class="units-lines" viewBox="0 0 ${COLUMNS_SHOWN} 1" preserveAspectRatio="none">
      <polyline data-line="kv" points=${line("kvShare")}></polyline>
      <polyline data-line="ahead" points=${line("aheadShare")}></polyline>
    </svg>
  </div>`;
}

const LEGEND = [
  ...["listen", "speak", "interrupt"].map((kind) => [kind, `live.unit.${kind}`]),
  ...["budget", "kv", "ahead", "gap"].map((kind) => [kind, `live.timeline.${kind}`]),
];

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
