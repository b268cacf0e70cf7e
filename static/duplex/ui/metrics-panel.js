// @ts-check
/**
 * The figures of a live call as a list: each with its value and, where there are limits, how good it is
 * in colour, shape and word.
 */

import { h, setText } from "../../shared/dom.js";
import { formatNumber } from "../../shared/formats.js";
import { onLangChange, t, tn } from "../../shared/i18n.js";
import { figuresOf } from "../lib/metric-grades.js";
import { callStateOf } from "../lib/call-state.js";

/** @typedef {import("../lib/duplex-types.js").SessionState} SessionState */
/** @typedef {import("../lib/metric-grades.js").Grade} Grade */

/**
 * What the panel shows beside the session itself.
 * @typedef {Object} MetricsExtra
 * @property {number} maxKvTokens
 * @property {number} delayMs playback delay aimed at
 * @property {string} modelName
 */

const NOTHING = "—";
const ROWS = /** @type {const} */ ([
  "state",
  "session",
  "model",
  "chunks",
  "kv",
  "vision",
  "infer",
  "ttfs",
  "delay",
  "ahead",
  "shift",
  "drift",
]);
/** @typedef {typeof ROWS[number]} Row */

/**
 * @param {HTMLElement} el
 * @param {{hasVision?: boolean}} [options]
 * @returns {{update: (state: SessionState, extra: MetricsExtra) => void}}
 */
export function mountMetricsPanel(el, { hasVision = false } = {}) {
  const rows = ROWS.filter((row) => hasVision || row !== "vision").map((row) => {
    const term = h("dt", {});
    const value = h("span", { class: "metric-value number" });
    const mark = h("span", { class: "metric-mark", "aria-hidden": "true" });
    const word = h("span", { class: "visually-hidden" });
    const item = h("div", { class: "metric", dataset: { row } }, term, h("dd", {}, mark, value, word));
    return { row, term, value, word, item };
  });
  el.append(
    h(
      "dl",
      { class: "metrics" },
      rows.map(({ item }) => item),
    ),
  );

  /** @type {[SessionState, MetricsExtra] | null} */
  let latest = null;
  const draw = () => {
    const values = latest ? valuesOf(...latest) : null;
    for (const { row, term, value, word, item } of rows) {
      setText(term, t(`live.metric.${row}`));
      const { text, grade } = values?.[row] ?? { text: NOTHING, grade: /** @type {Grade} */ ("none") };
      setText(value, text);
      item.dataset.grade = grade;
      setText(word, grade === "none" ? "" : ` (${t(`live.grade.${grade}`)})`);
    }
  };
  onLangChange(draw);
  draw();
  return {
    update(state, extra) {
      latest = [state, extra];
      draw();
    },
  };
}

/** @param {number | null} value */
function ms(value) {
  return value === null ? NOTHING : `${formatNumber(Math.round(value))} ms`;
}

/**
 * @param {SessionState} state
 * @param {MetricsExtra} extra
 * @returns {Record<Row, {text: string, grade: Grade}>}
 */
function valuesOf(state, { maxKvTokens, delayMs, modelName }) {
  const { kvShare, wallMs, costMs, grades } = figuresOf(state, maxKvTokens);
  const plain = (/** @type {string} */ text) => ({ text: text || NOTHING, grade: /** @type {Grade} */ ("none") });
  const isLive = state.preparedAtMs !== null;
  const percent = kvShare === null ? "" : ` (${formatNumber(kvShare * 100)} %)`;
  const gaps = state.gapCount > 0 ? ` · ${tn("live.metric.gaps", state.gapCount)}` : "";
  const dropped = state.chunksUploadDropped + state.chunksServerDropped;
  const lost = dropped > 0 ? ` · ${t("live.metric.dropped", { n: formatNumber(dropped) })}` : "";
  const kv = `${formatNumber(state.kvTokens)} / ${formatNumber(maxKvTokens)}${percent}`;
  return {
    state: plain(t(`live.state.${callStateOf(state)}`)),
    session: plain(state.recordingSessionId ?? state.sessionId),
    model: plain(modelName),
    chunks: plain(isLive ? `${formatNumber(state.chunksSent)}${lost}` : ""),
    kv: { text: isLive ? kv : NOTHING, grade: grades.kv },
    vision: plain(isLive ? t("live.metric.vision_value", { slices: state.visionSlices, tokens: state.visionTokens }) : ""),
    infer: { text: wallMs === null ? NOTHING : `${ms(wallMs)} (${ms(costMs)})`, grade: grades.infer },
    ttfs: { text: ms(state.ttfsMs), grade: grades.ttfs },
    delay: plain(ms(delayMs)),
    ahead: { text: `${ms(isLive ? state.aheadMs : null)}${gaps}`, grade: grades.ahead },
    shift: { text: isLive ? ms(state.totalShiftMs) : NOTHING, grade: grades.shift },
    drift: { text: ms(state.driftMs), grade: grades.drift },
  };
}
