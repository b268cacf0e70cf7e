// @ts-check
/** The figures of a call as a list: each with its value and, where there are limits, how good it is in colour, shape and word. */

import { formatNumber } from "../../shared/formats.js";
import { t, tn } from "../../shared/i18n.js";
import { html } from "../../shared/lit.js";
import { callStateOf } from "../lib/call-state.js";
import { figuresOf } from "../lib/call-figures.js";

/** @import { Grade } from "../lib/call-figures.js" */
/** @import { SessionState } from "../lib/duplex-types.js" */

/** @typedef {{name: string, label: string, text: string, grade?: Grade}} Metric */

/**
 * What the panel shows beside the session itself.
 * @typedef {Object} MetricsExtra
 * @property {number} maxKvTokens
 * @property {number} delayMs playback delay aimed at
 * @property {string} modelName
 * @property {boolean} hasVision
 */

export const NOTHING = "—";

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

/** @param {number | null} value */
const ms = (value) => (value === null ? NOTHING : `${formatNumber(Math.round(value))} ms`);

/** The figures of a full-duplex call. @param {SessionState} state @param {MetricsExtra} extra @returns {Metric[]} */
export function duplexMetrics(state, { maxKvTokens, delayMs, modelName, hasVision }) {
  const { kvShare, wallMs, costMs, grades } = figuresOf(state, maxKvTokens);
  const isLive = state.preparedAtMs !== null;
  const percent = kvShare === null ? "" : ` (${formatNumber(kvShare * 100)} %)`;
  const gaps = state.gapCount > 0 ? ` · ${tn("live.metric.gaps", state.gapCount)}` : "";
  const dropped = state.chunksUploadDropped + state.chunksServerDropped;
  const lost = dropped > 0 ? ` · ${t("live.metric.dropped", { n: formatNumber(dropped) })}` : "";
  const kv = `${formatNumber(state.kvTokens)} / ${formatNumber(maxKvTokens)}${percent}`;
  const vision = () => t("live.metric.vision_value", { slices: state.visionSlices, tokens: state.visionTokens });
  /** @type {[string, string, Grade?][]} */
  const rows = [
    ["state", t(`live.state.${callStateOf(state)}`)],
    ["session", state.recordingSessionId ?? state.sessionId],
    ["model", modelName],
    ["chunks", isLive ? `${formatNumber(state.chunksSent)}${lost}` : ""],
    ["kv", isLive ? kv : "", grades.kv],
    ["vision", isLive ? vision() : ""],
    ["infer", wallMs === null ? "" : `${ms(wallMs)} (${ms(costMs)})`, grades.infer],
    ["ttfs", ms(state.ttfsMs), grades.ttfs],
    ["delay", ms(delayMs)],
    ["ahead", `${ms(isLive ? state.aheadMs : null)}${gaps}`, grades.ahead],
    ["shift", isLive ? ms(state.totalShiftMs) : "", grades.shift],
    ["drift", ms(state.driftMs), grades.drift],
  ];
  return rows
    .filter(([name]) => hasVision || name !== "vision")
    .map(([name, text, grade]) => ({ name, label: t(`live.metric.${name}`), text: text || NOTHING, grade }));
}
