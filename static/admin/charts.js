// @ts-check
/**
 * The last hour in pictures; their library is loaded when they are first shown. The same figures
 * stand in a table, which is all there is where the library is missing.
 */

import { onThemeChange, themeColours } from "../shared/canvas-tools.js";
import { find, on } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { html, icon, nothing } from "../shared/lit.js";
import { problemText } from "../shared/problems.js";
import { loadUplot } from "../shared/vendor.js";
import { chartsOf, latest, spansOf, workerOf } from "./chart-data.js";
import { drawPlot } from "./plot.js";
import { table } from "./table.js";
import { UNKNOWN, kindName, memory, milliseconds, span } from "./words.js";

/** @typedef {import("./chart-data.js").Chart} Chart */
/** @typedef {import("./chart-data.js").Line} Line */
/** @typedef {typeof import("uplot")} Library */
/** @typedef {{plot: import("./plot.js").Plotted, names: string}} Drawn */

const SPAN_S = 300; // of a row of the table
const CHARTS = /** @type {const} */ (["sessions", "queue", "units", "memory"]);
const STYLES = "/static/vendor/uplot/index.css";

/** @type {import("./table.js").TableColumn<import("./chart-data.js").Span>[]} */
const COLUMNS = [
  { labelKey: "admin.col_from", cell: ({ startS }) => clockTime(startS) },
  { labelKey: "admin.col_sessions", cell: ({ sessions }) => String(sessions ?? UNKNOWN) },
  { labelKey: "admin.col_queue", cell: ({ queue }) => String(queue ?? UNKNOWN) },
  { labelKey: "admin.col_longest_wait", cell: ({ waitS }) => span(waitS) },
  { labelKey: "admin.line_unit_p50_ms", cell: ({ p50Ms }) => milliseconds(p50Ms) },
  { labelKey: "admin.line_unit_p99_ms", cell: ({ p99Ms }) => milliseconds(p99Ms) },
  { labelKey: "admin.col_memory", cell: ({ memoryMb }) => memory(memoryMb) },
];

/**
 * @param {HTMLElement} el what the view is rendered in
 * @param {() => void} draw
 */
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
        <div role="alert">${failure ? problemNotice(failure) : nothing}</div>
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

/** @param {Error} problem */
function problemNotice(problem) {
  const { title, nextStep, detail } = problemText(problem);
  return html`<div class="notice" data-kind="caution">
    ${icon("warning")}
    <div class="stack-tight">
      <p class="notice-title">${title}</p>
      <p>${nextStep}</p>
      ${detail ? html`<p class="small soft">${detail}</p>` : nothing}
    </div>
  </div>`;
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

/**
 * @param {Line} line
 * @param {number | null} value
 */
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
