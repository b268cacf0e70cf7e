// @ts-check
/**
 * The last hour in pictures; their library is loaded when they are first shown. The same figures
 * stand in a table, which is all there is where the library is missing.
 */

import { onThemeChange, themeColours } from "../shared/canvas-tools.js";
import { h, on, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { mountNotice } from "../shared/notice.js";
import { loadUplot } from "../shared/vendor.js";
import { chartsOf, latest, spansOf, workerOf } from "./chart-data.js";
import { mountTable } from "./table.js";
import { drawPlot } from "./plot.js";
import { UNKNOWN, kindName, memory, milliseconds, said, span } from "./words.js";

/** @typedef {import("./chart-data.js").Chart} Chart */
/** @typedef {import("./chart-data.js").Line} Line */

const SPAN_S = 300; // of a row of the table
const CHARTS = /** @type {const} */ (["sessions", "queue", "units", "memory"]);
const STYLES = "/static/vendor/uplot/index.css";

/**
 * @param {HTMLElement} el
 * @returns {{update: (history: Http.History) => void}}
 */
export function mountCharts(el) {
  const noticeEl = h("div");
  const cards = new Map(CHARTS.map((id) => [id, chartCard(id)]));
  const grid = h(
    "div",
    { class: "admin-charts" },
    [...cards.values()].map(({ node }) => node),
  );
  const numbers = h("div", { class: "admin-wide" });
  const details = h("details", { class: "panel", id: "chart-numbers" }, said("summary", "admin.as_table"), numbers);
  el.append(said("h3", "admin.last_hour"), noticeEl, grid, details);
  const notice = mountNotice(noticeEl);
  const table = mountNumbers(numbers);
  const colours = themeColours(el);

  /** @type {Promise<typeof import("uplot") | null> | null} */
  let library = null;
  const load = async () => {
    try {
      const Plot = await loadUplot();
      await addStyles();
      return Plot;
    } catch (error) {
      notice.show(/** @type {Error} */ (error), { kind: "caution" });
      grid.hidden = true;
      details.open = true;
      return null;
    }
  };

  /** @type {Http.History | null} */
  let shown = null;
  const draw = async (isRebuilt = false) => {
    if (!shown) return;
    table.update(spansOf(shown, SPAN_S));
    const charts = chartsOf(shown);
    library ??= load();
    const Plot = await library;
    if (!Plot) return;
    for (const chart of charts) cards.get(chart.id)?.draw(Plot, chart, colours.css, isRebuilt);
  };
  onThemeChange(() => void draw(true));
  onLangChange(() => void draw(true));
  return {
    update(history) {
      shown = history;
      void draw();
    },
  };
}

/** Its style sheet; without it charts are drawn all the same, if less well. @returns {Promise<void>} */
function addStyles() {
  const link = h("link", { rel: "stylesheet", href: STYLES });
  const loaded = new Promise((/** @type {(value: void) => void} */ resolve) => {
    on(link, "load", () => resolve());
    on(link, "error", () => resolve());
  });
  document.head.append(link);
  return loaded;
}

/** @param {typeof CHARTS[number]} id */
function chartCard(id) {
  const place = h("div", { class: "admin-plot", role: "img", "aria-describedby": "chart-numbers" });
  const legend = h("ul", { class: "admin-legend small" });
  const empty = h("p", { class: "small soft admin-plot-empty" });
  const node = h(
    "figure",
    { class: "card admin-chart", dataset: { chart: id } },
    said("figcaption", `admin.chart_${id}`, { class: "admin-chart-title" }),
    empty,
    place,
    legend,
  );
  /** @type {import("./plot.js").Plotted | null} */
  let plot = null;
  let names = "";
  return {
    node,
    /**
     * @param {typeof import("uplot")} Plot
     * @param {Chart} chart
     * @param {(token: string, alpha?: number) => string} css
     * @param {boolean} isRebuilt colours or words are others now
     */
    draw(Plot, chart, css, isRebuilt) {
      place.hidden = chart.isEmpty;
      empty.hidden = !chart.isEmpty;
      setText(empty, t(`admin.chart_${id}_empty`));
      legend.hidden = chart.isEmpty;
      const figures = chart.lines.map((line) => `${lineName(line)} ${figure(line, latest(line.values))}`);
      const title = t(`admin.chart_${id}`);
      place.setAttribute("aria-label", `${title}: ${figures.join(", ")}`);
      if (chart.isEmpty) return;
      const lines = chart.lines.map(({ name }) => name).join();
      if (plot && (isRebuilt || lines !== names)) {
        plot.close();
        plot = null;
      }
      names = lines;
      if (plot) return plot.update(chart);
      const keys = chart.lines.map((line) => legendEntry(line));
      legend.replaceChildren(...keys.map((key) => key.node));
      plot = drawPlot(Plot, place, {
        chart,
        css,
        tick: figure,
        onPoint: (values) => keys.forEach((key, index) => key.draw(values[index])),
      });
    },
  };
}

/** @param {Line} line */
function legendEntry(line) {
  const value = h("span", { class: "number admin-legend-value" });
  const node = h(
    "li",
    {},
    h("span", { class: "admin-swatch", dataset: { tone: line.tone, dashed: line.isDashed } }),
    h("span", {}, lineName(line)),
    value,
  );
  return { node, draw: (/** @type {number | null} */ now) => setText(value, figure(line, now)) };
}

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

/** @param {HTMLElement} el */
function mountNumbers(el) {
  /** @typedef {import("./chart-data.js").Span} Span */
  /** @type {import("./table.js").TableColumn<Span>[]} */
  const columns = [
    { labelKey: "admin.col_from", text: ({ startS }) => clockTime(startS) },
    { labelKey: "admin.col_sessions", text: ({ sessions }) => String(sessions ?? UNKNOWN) },
    { labelKey: "admin.col_queue", text: ({ queue }) => String(queue ?? UNKNOWN) },
    { labelKey: "admin.col_longest_wait", text: ({ waitS }) => span(waitS) },
    { labelKey: "admin.line_unit_p50_ms", text: ({ p50Ms }) => milliseconds(p50Ms) },
    { labelKey: "admin.line_unit_p99_ms", text: ({ p99Ms }) => milliseconds(p99Ms) },
    { labelKey: "admin.col_memory", text: ({ memoryMb }) => memory(memoryMb) },
  ];
  return mountTable(el, {
    captionKey: "admin.numbers_caption",
    emptyKey: "admin.numbers_empty",
    keyOf: (/** @type {Span} */ row) => String(row.startS),
    columns,
  });
}

/** @param {number} seconds of Unix time */
function clockTime(seconds) {
  return new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "short" }).format(new Date(seconds * 1_000));
}
