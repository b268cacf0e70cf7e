/** Figures of a live call with their grades and texts, and its units as columns of the timeline. Pure. */

import { formatBytes, formatClock, formatNumber, t, tn } from "../../shared/texts.js";
import { callStateOf } from "./call-state.js";

/** @import { HalfState, SessionState } from "./session-state.js" */
/** @import { UnitRecord } from "./full-duplex.js" */
/** @import { HalfTurn } from "./half-duplex-session.js" */
/** @import { PictureTaker } from "./picture-taker.js" */

/** @typedef {"good" | "caution" | "bad" | "none"} Grade */

const TTFS_MS = Object.freeze([1_000, 2_000]); // limits of the time to first audio: good and acceptable, ms
const DRIFT_MS = Object.freeze([50, 200]); // limits of the clock drift between page and server, ms
const AHEAD_MS = Object.freeze([200, 50]); // lower limits of the audio queued while the model speaks: good and acceptable, ms
const SHIFT_MS = Object.freeze([0, 200]); // limits of the total audible gaps, ms
const KV_SHARE = Object.freeze([0.5, 0.8]);
const INFER_SHARE = Object.freeze([0.8, 1]); // limits of the compute time as a share of the unit's length

/** @param {number | null} value @param {readonly number[]} limits upper bounds of good and acceptable @returns {Grade} */
export function gradeLow(value, [good, bearable]) {
  if (value === null || !Number.isFinite(value)) return "none";
  if (value <= good) return "good";
  return value <= bearable ? "caution" : "bad";
}

/** @param {number | null} value @param {readonly number[]} limits lower bounds of good and acceptable @returns {Grade} */
export const gradeHigh = (value, [good, bearable]) => gradeLow(value === null ? null : -value, [-good, -bearable]);

// Units as columns of the timeline: stages stacked in ms, context, buffered audio, gaps.

export const COLUMNS_SHOWN = 60;
const HEADROOM = 1.2; // headroom above the budget line, as a share of it
const MOST_BUDGETS = 3; // the scale grows with slow units up to this many budgets; higher columns are clipped
const AHEAD_SCALE_MS = 2_000; // full scale of the line of buffered audio, ms

/** From bottom to top. @type {readonly ["read", "think", "voice", "sound", "rest"]} */
export const STAGES = Object.freeze(["read", "think", "voice", "sound", "rest"]);

/** @typedef {ReturnType<typeof columnOf>} UnitColumn */

export function kindOf(/** @type {UnitRecord} */ unit) {
  if (unit.isBargeIn || unit.isMuted) return "interrupt";
  return unit.isListen ? "listen" : "speak";
}

const bounded = (/** @type {number} */ share) => Math.min(1, Math.max(0, share));

/** @param {UnitRecord} unit @param {{chunkMs: number, maxKvTokens: number}} limits */
export function columnOf(unit, { chunkMs, maxKvTokens }) {
  const { prefillMs: read, costLlmMs: think, costTtsMs: voice } = unit;
  const sound = unit.costToken2wavMs ?? 0;
  const stagesMs = { read, think, voice, sound, rest: Math.max(0, unit.costAllMs - read - think - voice - sound) };
  const totalMs = STAGES.reduce((sum, stage) => sum + stagesMs[stage], 0);
  return {
    step: unit.step,
    kind: kindOf(unit),
    stagesMs,
    totalMs,
    wallMs: unit.wallClockMs,
    isLate: Math.max(totalMs, unit.wallClockMs) > chunkMs, // over the budget
    isEndOfTurn: unit.isEndOfTurn,
    kvTokens: unit.kvTokens,
    kvShare: maxKvTokens > 0 ? bounded(unit.kvTokens / maxKvTokens) : 0, // of the context limit
    aheadMs: unit.aheadMs,
    aheadShare: bounded((unit.aheadMs ?? 0) / AHEAD_SCALE_MS),
    gapMs: unit.gapMs,
  };
}

/** @param {readonly UnitRecord[]} units @param {{chunkMs: number, maxKvTokens: number}} limits @returns {UnitColumn[]} */
export const columnsOf = (units, limits) => units.slice(-COLUMNS_SHOWN).map((unit) => columnOf(unit, limits));

/** Full scale of the timeline, ms. @param {UnitColumn[]} columns @param {number} chunkMs */
export function heightMs(columns, chunkMs) {
  const highest = columns.reduce((most, column) => Math.max(most, column.totalMs), 0);
  return Math.min(MOST_BUDGETS * chunkMs, Math.max(chunkMs, highest)) * HEADROOM;
}

/** Kind of a recent level. @typedef {ReturnType<typeof levelKindOf>} LevelKind */

export function levelKindOf(/** @type {HalfState} */ { activity, isMicMuted }) {
  if (activity === "speaking" || activity === "interrupted") return "answer";
  if (isMicMuted || activity === "thinking" || activity === "settling") return "closed";
  return activity === "hearing" ? "speech" : "quiet";
}

// Metrics of a call: values and grades.

/** @typedef {{name: string, label: string, text: string, grade?: Grade}} Metric */

const NOTHING = "—";

const ms = (/** @type {number | null} */ value) => (value === null ? NOTHING : `${formatNumber(Math.round(value))} ms`);

/**
 * The figures of a full-duplex call.
 * @param {SessionState} state
 * @param {{maxKvTokens: number, delayMs: number, modelName: string, hasVision: boolean}} extra `delayMs`: target playback delay
 * @returns {Metric[]}
 */
export function duplexMetrics(state, { maxKvTokens, delayMs, modelName, hasVision }) {
  const unit = state.units.at(-1) ?? null;
  const kvShare = unit && maxKvTokens > 0 ? state.kvTokens / maxKvTokens : null;
  const isSounding = state.activity === "speaking" && state.isTurnOpen;
  const isLive = state.preparedAtMs !== null;
  const percent = kvShare === null ? "" : ` (${formatNumber(kvShare * 100)} %)`;
  const gaps = state.gapCount > 0 ? ` · ${tn("live.metric.gaps", state.gapCount)}` : "";
  const dropped = state.chunksUploadDropped + state.chunksServerDropped;
  const lost = dropped > 0 ? ` · ${t("live.metric.dropped", { n: formatNumber(dropped) })}` : "";
  const kv = `${formatNumber(state.kvTokens)} / ${formatNumber(maxKvTokens)}${percent}`;
  const vision = () => t("live.metric.vision_value", { slices: state.visionSlices, tokens: state.visionTokens });
  /** @type {[string, string, Grade?][]} */ const rows = [
    ["state", t(`live.state.${callStateOf(state)}`)],
    ["session", state.recordingSessionId ?? state.sessionId],
    ["model", modelName],
    ["chunks", isLive ? `${formatNumber(state.chunksSent)}${lost}` : ""],
    ["kv", isLive ? kv : "", gradeLow(kvShare, KV_SHARE)],
    ["vision", isLive ? vision() : ""],
    [
      "infer",
      unit ? `${ms(unit.wallClockMs)} (${ms(unit.costAllMs)})` : "",
      gradeLow(unit && unit.wallClockMs / state.chunkMs, INFER_SHARE),
    ],
    ["ttfs", ms(state.ttfsMs), gradeLow(state.ttfsMs, TTFS_MS)],
    ["delay", ms(delayMs)],
    ["ahead", `${ms(isLive ? state.aheadMs : null)}${gaps}`, gradeHigh(isSounding ? state.aheadMs : null, AHEAD_MS)],
    ["shift", isLive ? ms(state.totalShiftMs) : "", gradeLow(unit && state.totalShiftMs, SHIFT_MS)],
    ["drift", ms(state.driftMs), gradeLow(state.driftMs && Math.abs(state.driftMs), DRIFT_MS)],
  ];
  return rows
    .filter(([name]) => hasVision || name !== "vision")
    .map(([name, text, grade]) => ({ name, label: t(`live.metric.${name}`), text: text || NOTHING, grade }));
}

const NEARLY_OVER_S = 30;

/** @param {HalfState} state @param {number | null} leftS @param {number} maxKvTokens @returns {Metric[]} */
export function halfMetrics(state, leftS, maxKvTokens) {
  const { kvTokens, queue } = state;
  const memory = kvTokens ? t("half.memory", { n: formatNumber(kvTokens), of: formatNumber(maxKvTokens) }) : NOTHING;
  /** @type {[string, string][]} */ const rows = [
    ["state", t(`live.state.${callStateOf(state)}`)],
    ["turn", formatNumber(state.turnCount)],
    ["remaining", leftS === null ? NOTHING : formatClock(Math.ceil(leftS))],
    ["queue", queue ? t("half.place", { n: formatNumber(queue.position) }) : NOTHING],
    ["memory", memory],
    ["session", state.sessionId || NOTHING],
  ];
  const isNear = leftS !== null && leftS <= NEARLY_OVER_S;
  return rows.map(([name, text]) => ({
    name,
    label: t(`half.figure.${name}`),
    text,
    grade: name === "remaining" && isNear ? "caution" : "none",
  }));
}

export function halfFigures(/** @type {HalfTurn} */ { ttftMs, ttfsMs, tokenStats, elapsedMs, isDone }) {
  const ms = (/** @type {number | null} */ n) => (n === null ? null : t("half.ms", { n: formatNumber(n) }));
  return [
    ["ttft", ms(ttftMs)],
    ["ttfs", ms(ttfsMs)],
    ["tokens", tokenStats && tn("half.tokens", tokenStats.generated_tokens)],
    ["total", isDone ? ms(elapsedMs) : null],
  ].filter(([, text]) => text !== null);
}

/** What is actually sent: pictures per second, size, slices. @param {ReturnType<PictureTaker["sent"]>} sent @param {SessionState} state */
export function sentText({ rateHz, frame }, { visionTokens, visionSlices }) {
  if (!frame) return t("omni.sent_none");
  const { widthPx: width, heightPx: height, bytes } = frame;
  const parts = [
    rateHz > 0 && t("omni.sent_rate", { rate: formatNumber(rateHz, 1) }),
    t("omni.sent_size", { width, height, bytes: formatBytes(bytes) }),
    visionTokens > 0 && tn("omni.sent_tiles", visionSlices, { tokens: formatNumber(visionTokens) }),
  ];
  return parts.filter(Boolean).join(" · ");
}

// Columns of the timeline.

export function describe(/** @type {UnitColumn} */ column, /** @type {number} */ chunkMs) {
  const ms = (/** @type {number} */ value) => formatNumber(Math.round(value));
  const parts = STAGES.filter((stage) => column.stagesMs[stage] >= 0.5).map(
    (stage) => `${t(`live.stage.${stage}`)} ${ms(column.stagesMs[stage])}`,
  );
  const said = [
    t("live.timeline.unit", {
      step: formatNumber(column.step + 1),
      kind: t(`live.unit.${column.kind}`),
      total: ms(column.totalMs),
      budget: ms(chunkMs),
    }),
    parts.join(" + "),
    t("live.timeline.kv_value", { tokens: formatNumber(column.kvTokens), percent: ms(column.kvShare * 100) }),
  ];
  if (column.aheadMs !== null) said.push(t("live.timeline.ahead_value", { ms: ms(column.aheadMs) }));
  if (column.gapMs > 0) said.push(t("live.timeline.gap_value", { ms: ms(column.gapMs) }));
  if (column.isLate) said.push(t("live.timeline.late"));
  return said.filter(Boolean).join(" · ");
}

/**
 * @param {UnitColumn[]} columns
 * @param {number | null} picked
 * @param {string} key
 * @returns {number | null | undefined} undefined: the key has no meaning here
 */
export function stepByKey(columns, picked, key) {
  if (columns.length === 0) return undefined;
  const last = columns.length - 1;
  const at = picked === null ? last : columns.findIndex((column) => column.step === picked);
  const moves = {
    ArrowLeft: at - 1,
    ArrowDown: at - 1,
    ArrowRight: at + 1,
    ArrowUp: at + 1,
    Home: 0,
    End: last,
    PageUp: at - 10,
    PageDown: at + 10,
  };
  if (key === "Escape") return null;
  if (!(key in moves)) return undefined;
  const next = moves[/** @type {keyof typeof moves} */ (key)];
  return columns[Math.min(last, Math.max(0, next))].step;
}
