/** Charts and a table of the server's last hour. Pure. */

import { S_PER_MINUTE, t } from "../shared/texts.js";
import { UNKNOWN, kindName, memory, milliseconds, span } from "./admin-texts.js";

/** @import { TableColumn } from "./words.js" */

/**
 * @typedef {(number | null)[]} Column
 * @typedef {ReturnType<typeof chart>} Chart
 * @typedef {Chart["lines"][number]} Line
 * @typedef {ReturnType<typeof spansOf>[number]} Span
 */

const SESSIONS = "sessions.";
const OLDER_KIND = "sessions.duplex";
const MEMORY = "vram_used_mb.";
const GAP_PERIODS = 2.5; // points further apart are not joined
const TONES = ["listen", "speak", "wait", "interrupt", "good"];

/** @type {Record<string, [tone: string, isDashed: boolean]>} */ const LOOKS = {
  "sessions.chat": ["idle", true],
  "sessions.streaming": ["wait", false],
  "sessions.half_duplex_audio": ["good", true],
  "sessions.audio_duplex": ["listen", false],
  "sessions.omni_duplex": ["speak", false],
  "sessions.duplex": ["interrupt", true],
  "queue.length": ["wait", false],
  "queue.oldest_wait_s": ["interrupt", true],
  "unit.p50_ms": ["listen", false],
  "unit.p99_ms": ["speak", true],
};

export function chartsOf(/** @type {Http.History} */ history) {
  const names = Object.keys(history.series);
  const isShown = (/** @type {string} */ name) => name !== OLDER_KIND || history.series[name].some(Boolean);
  const starting = (/** @type {string} */ prefix) => names.filter((name) => name.startsWith(prefix) && isShown(name));
  return [
    chart("sessions", history, starting(SESSIONS)),
    chart("queue", history, ["queue.length", "queue.oldest_wait_s"]),
    chart("units", history, ["unit.p50_ms", "unit.p99_ms"]),
    chart("memory", history, starting(MEMORY)),
  ];
}

function chart(
  /** @type {"sessions" | "queue" | "units" | "memory"} */ id,
  /** @type {Http.History} */ history,
  /** @type {string[]} */ names,
) {
  const { times, columns } = withGaps(
    history.t,
    names.map((name) => history.series[name] ?? []),
    history.period_s * GAP_PERIODS,
  );
  const lines = names.map((name, index) => {
    // Dashes, so that lines differ not only in colour.
    const [tone, isDashed] = LOOKS[name] ?? [TONES[index % TONES.length], index >= TONES.length];
    const side = /** @type {"left" | "right"} */ (name === "queue.oldest_wait_s" ? "right" : "left"); // of its axis
    return { name, tone, isDashed, side, values: columns[index] };
  });
  return { id, times, lines, isEmpty: !lines.some(({ values }) => values.some((value) => value !== null)) };
}

/**
 * Inserts empty points where measurements are missing, so that no line is drawn across.
 * @param {readonly number[]} times Unix seconds
 * @param {readonly Column[]} columns
 * @param {number} longestS largest distance of two joined points
 */
export function withGaps(times, columns, longestS) {
  /** @type {number[]} */ const all = [];
  /** @type {Column[]} */ const filled = columns.map(() => []);
  times.forEach((time, at) => {
    if (at > 0 && time - times[at - 1] > longestS) {
      all.push((time + times[at - 1]) / 2);
      filled.forEach((column) => column.push(null));
    }
    all.push(time);
    filled.forEach((column, index) => column.push(columns[index][at] ?? null));
  });
  return { times: all, columns: filled };
}

/** The hour in pieces, newest first; null where nothing is known. @param {Http.History} history @param {number} spanS */
export function spansOf({ t: times, series }, spanS) {
  const names = Object.keys(series);
  const startOf = (/** @type {number} */ time) => Math.floor(time / spanS) * spanS; // Unix seconds
  return [...new Set(times.map(startOf))]
    .sort((a, b) => b - a)
    .map((startS) => {
      const at = [...times.keys()].filter((index) => startOf(times[index]) === startS);
      const points = (/** @type {string} */ name) => known(at.map((index) => series[name]?.[index] ?? null));
      const sums = (/** @type {string} */ prefix) => {
        const added = names.filter((name) => name.startsWith(prefix));
        return known(at.map((index) => sum(known(added.map((name) => series[name][index] ?? null)))));
      };
      return {
        startS,
        sessions: most(sums(SESSIONS)),
        queue: most(points("queue.length")),
        waitS: most(points("queue.oldest_wait_s")),
        p50Ms: middle(points("unit.p50_ms")), // the median of the points
        p99Ms: most(points("unit.p99_ms")),
        memoryMb: most(sums(MEMORY)), // of all workers
      };
    });
}

/** @param {Column} values @returns {number[]} */
const known = (values) => values.filter((value) => value !== null);

const sum = (/** @type {number[]} */ numbers) => (numbers.length > 0 ? numbers.reduce((all, value) => all + value, 0) : null);

const most = (/** @type {number[]} */ numbers) => (numbers.length > 0 ? Math.max(...numbers) : null);

function middle(/** @type {number[]} */ values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length > 0 ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
}

/** @param {Column} values @returns {number | null} the current value; null if unknown */
export const latest = (values) => values.at(-1) ?? null;

// Texts of charts and table, and options of the chart library.

const DASH_PX = [6, 4];
const LINE_PX = 2;
const FILL_ALPHA = 0.08;
const LEAST_TOP = 4; // minimum scale of an empty chart
const LEAST_AXIS_PX = 34;
const TICK_PX = 16; // including the gap to the labels
const TICK_SPACE_PX = 36;
const TIME_AXIS_PX = 32;
const TIME_SPACE_PX = 84;
const LEAST_SPAN_S = 10 * S_PER_MINUTE; // of the time axis while there are few measurements

/** @type {TableColumn<Span>[]} */ export const SPAN_COLUMNS = [
  { labelKey: "admin.col_from", cell: ({ startS }) => clockTime(startS) },
  { labelKey: "admin.col_sessions", cell: ({ sessions }) => String(sessions ?? UNKNOWN) },
  { labelKey: "admin.col_queue", cell: ({ queue }) => String(queue ?? UNKNOWN) },
  { labelKey: "admin.col_longest_wait", cell: ({ waitS }) => span(waitS) },
  { labelKey: "admin.line_unit_p50_ms", cell: ({ p50Ms }) => milliseconds(p50Ms) },
  { labelKey: "admin.line_unit_p99_ms", cell: ({ p99Ms }) => milliseconds(p99Ms) },
  { labelKey: "admin.col_memory", cell: ({ memoryMb }) => memory(memoryMb) },
];

export function lineName(/** @type {Line} */ { name }) {
  if (name.startsWith(SESSIONS)) return kindName(/** @type {Http.RequestType} */ (name.slice(SESSIONS.length)));
  if (name.startsWith(MEMORY)) return name.slice(MEMORY.length); // its worker
  return t(`admin.line_${name.replace(".", "_")}`);
}

export function figure(/** @type {Line} */ { name }, /** @type {number | null} */ value) {
  if (value === null) return UNKNOWN;
  if (name.startsWith(MEMORY)) return memory(value);
  if (name.startsWith("unit.")) return milliseconds(value);
  return name === "queue.oldest_wait_s" ? span(value) : String(value);
}

/** @param {number} seconds of Unix time */
const clockTime = (seconds) =>
  new Intl.DateTimeFormat(t("language.tag"), { timeStyle: "short" }).format(new Date(seconds * 1_000));

/** @typedef {import("uplot")} Plot */

/** @param {Chart} chart @returns {import("uplot").AlignedData} */
export const dataOf = ({ times, lines }) => [times, ...lines.map(({ values }) => values)];

/**
 * @param {Chart} chart
 * @param {{css: (token: string, alpha?: number) => string, tell: (plot: Plot) => void, size: {width: number, height: number},
 *   font: string}} look
 */
export function optionsOf(chart, { css, tell, size, font }) {
  const text = {
    font,
    stroke: css("ink-soft"),
    grid: { stroke: css("line"), width: 1 },
    ticks: { stroke: css("line"), width: 1 },
  };
  const sideAxis = (/** @type {"left" | "right"} */ side) => {
    const line = chart.lines.find((each) => each.side === side);
    return (
      line && {
        ...text,
        grid: side === "left" ? text.grid : { show: false },
        scale: side,
        side: side === "left" ? 3 : 1,
        size: widthOf,
        space: TICK_SPACE_PX,
        incrs:
          line.name.startsWith(SESSIONS) || line.name === "queue.length"
            ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000]
            : undefined,
        values: (/** @type {Plot} */ _, /** @type {number[]} */ splits) => splits.map((value) => figure(line, value)),
      }
    );
  };
  const range = (/** @type {Plot} */ _, /** @type {number} */ _least, /** @type {number} */ most) =>
    /** @type {[number, number]} */ ([0, Math.max(LEAST_TOP, (most ?? 0) * 1.15)]);
  const axes = /** @type {import("uplot").Axis[]} */ (
    [{ ...text, space: TIME_SPACE_PX, size: TIME_AXIS_PX, values: clockTicks }, sideAxis("left"), sideAxis("right")].filter(
      Boolean,
    )
  );
  return {
    ...size,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: true, range: spanOf }, left: { range }, right: { range } },
    axes,
    series: [
      {},
      ...chart.lines.map((line) => ({
        scale: line.side,
        stroke: css(line.tone),
        fill: chart.lines.length === 1 ? css(line.tone, FILL_ALPHA) : undefined,
        width: LINE_PX,
        dash: line.isDashed ? DASH_PX : undefined,
        points: { show: chart.times.length < 3 },
      })),
    ],
    hooks: { setCursor: [tell] },
  };
}

/** @param {Plot} _ @param {number} first @param {number} last @returns {[number, number]} */
const spanOf = (_, first, last) => [Math.min(first, last - LEAST_SPAN_S), last];

/** @param {Plot} _ @param {number[]} splits Unix seconds */
function clockTicks(_, splits) {
  const isClose = splits.length > 1 && splits[1] - splits[0] < S_PER_MINUTE;
  const format = new Intl.DateTimeFormat(t("language.tag"), {
    hour: "2-digit",
    minute: "2-digit",
    second: isClose ? "2-digit" : undefined,
    hourCycle: "h23",
  });
  return splits.map((seconds) => format.format(new Date(seconds * 1_000)));
}

/** @param {Plot} plot @param {string[] | null} words none without values @param {number} axis */
function widthOf({ axes, ctx }, words, axis) {
  const [font] = /** @type {string[]} */ (/** @type {unknown} */ (axes[axis].font)); // scaled, as uPlot keeps it
  ctx.font = font;
  const widths = (words ?? []).map((word) => ctx.measureText(word).width / (globalThis.devicePixelRatio || 1));
  return Math.max(LEAST_AXIS_PX, Math.ceil(Math.max(0, ...widths)) + TICK_PX);
}
