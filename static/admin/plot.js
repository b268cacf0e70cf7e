// @ts-check
/** One chart, drawn by uPlot in the colours of the theme; follows the size of its place. */

import { on } from "../shared/dom.js";
import { latest } from "./chart-data.js";

/** @typedef {import("./chart-data.js").Chart} Chart */
/** @typedef {import("./chart-data.js").Line} Line */
/** @typedef {import("uplot")} Plot */

const HEIGHT_SHARE = 0.42; // of the width
const MIN_HEIGHT_PX = 150;
const MAX_HEIGHT_PX = 300;
const DASH_PX = [6, 4];
const LINE_PX = 2;
const FILL_ALPHA = 0.08;
const LEAST_TOP = 4; // so that a line at zero does not fill the chart
const LEAST_AXIS_PX = 34;
const TICK_PX = 16; // with the gap to the words
const TICK_SPACE_PX = 36;
const TIME_AXIS_PX = 32;
const TIME_SPACE_PX = 84;
const S_PER_MINUTE = 60;
const LEAST_SPAN_S = 10 * S_PER_MINUTE; // of the time axis, when little was measured yet

/**
 * @typedef {Object} PlotOptions
 * @property {Chart} chart
 * @property {(token: string, alpha?: number) => string} css colours of the theme
 * @property {(line: Line, value: number | null) => string} tick words of a value
 * @property {(values: (number | null)[]) => void} onPoint values at the pointer, else the latest ones
 *
 * @typedef {{update: (chart: Chart) => void, close: () => void}} Plotted
 */

/**
 * @param {typeof import("uplot")} UPlot
 * @param {HTMLElement} el
 * @param {PlotOptions} options
 * @returns {Plotted}
 */
export function drawPlot(UPlot, el, { chart, css, tick, onPoint }) {
  let current = chart;
  const tell = (/** @type {Plot} */ plot) => {
    const at = plot.cursor.idx ?? null;
    onPoint(current.lines.map(({ values }) => (at === null ? latest(values) : (values[at] ?? null))));
  };
  const plot = new UPlot(
    optionsOf(chart, { css, tick, tell, size: sizeOf(el), font: `12px ${getComputedStyle(el).fontFamily}` }),
    dataOf(chart),
    el,
  );
  const observer = new ResizeObserver(() => {
    const size = sizeOf(el);
    if (size.width > 0 && size.width !== plot.width) plot.setSize(size);
  });
  observer.observe(el);
  const endFonts = on(document.fonts, "loadingdone", () => plot.redraw(false, true));
  tell(plot);
  return {
    update(next) {
      current = next;
      plot.setData(dataOf(next));
      tell(plot);
    },
    close() {
      endFonts();
      observer.disconnect();
      plot.destroy();
    },
  };
}

/** @param {HTMLElement} el */
function sizeOf(el) {
  const width = Math.floor(el.clientWidth);
  return { width, height: Math.round(Math.min(MAX_HEIGHT_PX, Math.max(MIN_HEIGHT_PX, width * HEIGHT_SHARE))) };
}

/** @param {Chart} chart @returns {import("uplot").AlignedData} */
function dataOf({ times, lines }) {
  return [times, ...lines.map(({ values }) => values)];
}

/**
 * @param {Chart} chart
 * @param {{css: PlotOptions["css"], tick: PlotOptions["tick"], tell: (plot: Plot) => void,
 *   size: {width: number, height: number}, font: string}} look
 * @returns {import("uplot").Options}
 */
function optionsOf(chart, { css, tick, tell, size, font }) {
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
        incrs: isWhole(line) ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000] : undefined,
        values: (/** @type {Plot} */ _, /** @type {number[]} */ splits) => splits.map((value) => tick(line, value)),
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
function spanOf(_, first, last) {
  return [Math.min(first, last - LEAST_SPAN_S), last];
}

/** @param {Line} line */
function isWhole({ name }) {
  return name.startsWith("sessions.") || name === "queue.length";
}

/**
 * @param {Plot} _
 * @param {number[]} splits Unix seconds
 */
function clockTicks(_, splits) {
  const isClose = splits.length > 1 && splits[1] - splits[0] < S_PER_MINUTE;
  const format = new Intl.DateTimeFormat(document.documentElement.lang, {
    hour: "2-digit",
    minute: "2-digit",
    second: isClose ? "2-digit" : undefined,
    hourCycle: "h23",
  });
  return splits.map((seconds) => format.format(new Date(seconds * 1_000)));
}

/**
 * How much room the words beside an axis need.
 *
 * @param {Plot} plot
 * @param {string[] | null} words none before there are values
 * @param {number} axis
 */
function widthOf({ axes, ctx }, words, axis) {
  const [font] = /** @type {string[]} */ (/** @type {unknown} */ (axes[axis].font)); // scaled, as uPlot keeps it
  ctx.font = font;
  const widths = (words ?? []).map((word) => ctx.measureText(word).width / (globalThis.devicePixelRatio || 1));
  return Math.max(LEAST_AXIS_PX, Math.ceil(Math.max(0, ...widths)) + TICK_PX);
}
