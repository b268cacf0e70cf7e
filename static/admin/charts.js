// @ts-check
/** The charts of the last hours. */

import { onThemeChange, themeColours } from "../shared/canvas-tools.js";
import { find, on } from "../shared/dom.js";
import { onLangChange, t } from "../shared/texts.js";
import { html, nothing } from "../shared/lit.js";
import { noticeView } from "../shared/notice.js";
import { loadUplot } from "../shared/vendor.js";
import { chartsOf, latest, spansOf, workerOf } from "./chart-data.js";
import { UNKNOWN, kindName, memory, milliseconds, span, table } from "./words.js";

/** @import { Chart, Line, Span } from "./chart-data.js" */
/** @import { TableColumn } from "./words.js" */

/** @typedef {typeof import("uplot")} Library */
/** @typedef {{plot: Plotted, names: string}} Drawn */

const SPAN_S = 300; // of a row of the table
const CHARTS = /** @type {const} */ (["sessions", "queue", "units", "memory"]);
const STYLES = "/static/vendor/uplot/index.css";

/** @type {TableColumn<Span>[]} */
const COLUMNS = [
  { labelKey: "admin.col_from", cell: ({ startS }) => clockTime(startS) },
  { labelKey: "admin.col_sessions", cell: ({ sessions }) => String(sessions ?? UNKNOWN) },
  { labelKey: "admin.col_queue", cell: ({ queue }) => String(queue ?? UNKNOWN) },
  { labelKey: "admin.col_longest_wait", cell: ({ waitS }) => span(waitS) },
  { labelKey: "admin.line_unit_p50_ms", cell: ({ p50Ms }) => milliseconds(p50Ms) },
  { labelKey: "admin.line_unit_p99_ms", cell: ({ p99Ms }) => milliseconds(p99Ms) },
  { labelKey: "admin.col_memory", cell: ({ memoryMb }) => memory(memoryMb) },
];

/** @param {HTMLElement} el what the view is rendered in @param {() => void} draw */
export function makeCharts(el, draw) {
  /** @type {Http.History | null} */
  let history = null;
  /** @type {Promise<Library | null> | null} */
  let library = null;
  let failure = /** @type {Error | null} */ (null);
  /** @type {Map<string, Drawn>} */
  const drawn = new Map();
  /** Values at the pointer, else the latest ones, by chart. @type {Map<string, (number | null)[]>} */
  const pointed = new Map();
  const colours = themeColours(el);

  const load = async () => {
    try {
      const Plot = await loadUplot();
      await addStyles();
      return Plot;
    } catch (error) {
      failure = /** @type {Error} */ (error);
      draw();
      return null;
    }
  };
  const plotAll = async (isRebuilt = false) => {
    library ??= load();
    const Plot = await library;
    if (!Plot || !history) return;
    for (const chart of chartsOf(history)) plotOne(Plot, chart, isRebuilt);
  };
  /** @param {Library} Plot @param {Chart} chart @param {boolean} isRebuilt colours or words are others now */
  const plotOne = (Plot, chart, isRebuilt) => {
    if (chart.isEmpty) return;
    const names = chart.lines.map(({ name }) => name).join();
    const known = drawn.get(chart.id);
    if (known && !isRebuilt && known.names === names) return known.plot.update(chart);
    known?.plot.close();
    const onPoint = (/** @type {(number | null)[]} */ values) => {
      pointed.set(chart.id, values);
      draw();
    };
    const place = find(el, `[data-chart="${chart.id}"] .admin-plot`, HTMLElement);
    drawn.set(chart.id, { plot: drawPlot(Plot, place, { chart, css: colours.css, tick: figure, onPoint }), names });
  };
  onThemeChange(() => void plotAll(true));
  onLangChange(() => void plotAll(true));

  /** @param {Chart} chart */
  const card = ({ id, lines, isEmpty }) => {
    const values = pointed.get(id);
    const figures = lines.map((line) => `${lineName(line)} ${figure(line, latest(line.values))}`);
    return html`<figure class="card admin-chart" data-chart=${id}>
      <figcaption class="admin-chart-title">${t(`admin.chart_${id}`)}</figcaption>
      <p class="small soft admin-plot-empty" ?hidden=${!isEmpty}>${t(`admin.chart_${id}_empty`)}</p>
      <div
        class="admin-plot"
        role="img"
        aria-describedby="chart-numbers"
        aria-label="${t(`admin.chart_${id}`)}: ${figures.join(", ")}"
        ?hidden=${isEmpty}
      ></div>
      <ul class="admin-legend small" ?hidden=${isEmpty}>
        ${lines.map((line, at) => legendEntry(line, values?.[at] ?? null))}
      </ul>
    </figure>`;
  };
  const empty = () => CHARTS.map((id) => /** @type {Chart} */ ({ id, times: [], lines: [], isEmpty: true }));
  return {
    /** @param {Http.History} next */
    update(next) {
      history = next;
      draw();
      void plotAll();
    },
    view: () =>
      html`<h3>${t("admin.last_hour")}</h3>
        <div role="alert">${failure ? noticeView(failure, { kind: "caution" }) : nothing}</div>
        <div class="admin-charts" ?hidden=${failure !== null}>${(history ? chartsOf(history) : empty()).map(card)}</div>
        <details class="panel" id="chart-numbers" ?open=${failure !== null}>
          <summary>${t("admin.as_table")}</summary>
          <div class="admin-wide">
            ${table({
              captionKey: "admin.numbers_caption",
              emptyKey: "admin.numbers_empty",
              keyOf: ({ startS }) => String(startS),
              columns: COLUMNS,
              rows: history && spansOf(history, SPAN_S),
            })}
          </div>
        </details>`,
  };
}

/** Its style sheet; without it charts are drawn all the same, if less well. @returns {Promise<void>} */
function addStyles() {
  const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: STYLES });
  const loaded = new Promise((/** @type {(value: void) => void} */ resolve) => {
    on(link, "load", () => resolve());
    on(link, "error", () => resolve());
  });
  document.head.append(link);
  return loaded;
}

/** @param {Line} line @param {number | null} value */
const legendEntry = (line, value) =>
  html`<li>
    <span class="admin-swatch" data-tone=${line.tone} data-dashed=${line.isDashed ? "true" : "false"}></span
    ><span>${lineName(line)}</span><span class="number admin-legend-value">${figure(line, value)}</span>
  </li>`;

/** @param {Line} line */
function lineName({ name }) {
  if (name.startsWith("sessions.")) return kindName(/** @type {Http.RequestType} */ (name.slice("sessions.".length)));
  if (name.startsWith("vram_used_mb.")) return workerOf(name);
  return t(`admin.line_${name.replace(".", "_")}`);
}

/** @param {Line} line @param {number | null} value */
function figure({ name }, value) {
  if (value === null) return UNKNOWN;
  if (name.startsWith("vram_used_mb.")) return memory(value);
  if (name.startsWith("unit.")) return milliseconds(value);
  return name === "queue.oldest_wait_s" ? span(value) : String(value);
}

/** @param {number} seconds of Unix time */
function clockTime(seconds) {
  return new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "short" }).format(new Date(seconds * 1_000));
}

// One chart, drawn by uPlot in the colours of the theme; follows the size of its place.

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

/** @param {typeof import("uplot")} UPlot @param {HTMLElement} el @param {PlotOptions} options @returns {Plotted} */
function drawPlot(UPlot, el, { chart, css, tick, onPoint }) {
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

/** @param {Plot} _ @param {number[]} splits Unix seconds */
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

/** @param {Plot} plot @param {string[] | null} words none before there are values @param {number} axis */
function widthOf({ axes, ctx }, words, axis) {
  const [font] = /** @type {string[]} */ (/** @type {unknown} */ (axes[axis].font)); // scaled, as uPlot keeps it
  ctx.font = font;
  const widths = (words ?? []).map((word) => ctx.measureText(word).width / (globalThis.devicePixelRatio || 1));
  return Math.max(LEAST_AXIS_PX, Math.ceil(Math.max(0, ...widths)) + TICK_PX);
}
