// @ts-check
/** The instruments of a live call below its stage: levels, timeline of units, figures. */

import { byId, on } from "../../shared/dom.js";
import { html, mountView } from "../../shared/lit.js";
import { duplexMetrics, metricRows, mountLevelMeter } from "./meters.js";
import { throttled } from "../../shared/late.js";
import { mountUnitTimeline } from "./unit-timeline.js";
import { remember, remembered } from "../../shared/memory.js";

/** @import { DuplexCall } from "../lib/duplex-call.js" */
/** @import { LiveViewOptions } from "./live-view.js" */

const INSTRUMENTS_KEY = "live_instruments";
const METRICS_MS = 250;

/** @param {DuplexCall} call @param {LiveViewOptions} options @returns {{update: () => void}} */
export function mountInstruments(call, { maxKvTokens, modelName, hasVision = false }) {
  const panel = byId("instruments", HTMLDetailsElement);
  const input = mountLevelMeter(byId("input-meter", HTMLElement), {
    labelKey: "live.meter.input",
    iconName: "mic",
    kind: "listen",
  });
  const output = mountLevelMeter(byId("output-meter", HTMLElement), {
    labelKey: "live.meter.output",
    iconName: "speaker",
    kind: "speak",
  });
  const timeline = mountUnitTimeline(byId("timeline", HTMLElement));
  const drawMetrics = mountView(byId("metrics", HTMLElement), () => {
    const extra = { maxKvTokens: maxKvTokens(), delayMs: call.delayMs, modelName: modelName(), hasVision };
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
    const { inputRms, outputRms } = call.levels();
    const areMoving = [input.update(inputRms, nowMs), output.update(outputRms, nowMs)].includes(true);
    if ((call.isActive || areMoving) && panel.open) frame = requestAnimationFrame(draw);
  };
  const drawMetricsSoon = throttled(drawMetrics, METRICS_MS);
  const update = () => {
    if (!panel.open) return;
    timeline.update(call.state, maxKvTokens());
    drawMetricsSoon();
    if (frame === 0) frame = requestAnimationFrame(draw);
  };
  return { update };
}
