/** The charts of the last hours. */

import { onThemeChange, themeColours } from "../shared/canvas-tools.js";
import { find, html, nothing, noticeView, on } from "../shared/lit.js";
import { onLangChange, t } from "../shared/texts.js";
import { loadUplot } from "../shared/libraries.js";
import { chartsOf, dataOf, figure, latest, lineName, optionsOf, SPAN_COLUMNS, spansOf } from "./chart-data.js";
import { table } from "./words.js";

/** @import { Chart, Line } from "./chart-data.js" */

/** @typedef {typeof import("uplot")} Library */

const SPAN_S = 300; // of a row of the table
/** @type {Http.History} */ const NO_HISTORY = { period_s: 1, t: [], series: {} }; // empty charts until it is loaded
const STYLES = "/static/vendor/uplot/index.css";

/** @param {HTMLElement} el container of the view @param {() => void} draw */
export function makeCharts(el, draw) {
  /** @type {Http.History | null} */ let history = null;
  /** @type {Promise<Library | null> | null} */ let library = null;
  let failure = /** @type {Error | null} */ (null);
  /** @type {Map<string, ReturnType<typeof drawPlot> & {names: string}>} */ const drawn = new Map();
  /** Values at the pointer, else the latest ones, by chart. @type {Map<string, (number | null)[]>} */ const pointed = new Map();
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
  /** @param {Library} Plot @param {Chart} chart @param {boolean} isRebuilt theme or language changed */
  const plotOne = (Plot, chart, isRebuilt) => {
    if (chart.isEmpty) return;
    const names = chart.lines.map(({ name }) => name).join();
    const known = drawn.get(chart.id);
    if (known && !isRebuilt && known.names === names) return known.update(chart);
    known?.close();
    const onPoint = (/** @type {(number | null)[]} */ values) => {
      pointed.set(chart.id, values);
      draw();
    };
    const place = find(el, `[data-chart="${chart.id}"] .admin-plot`);
    drawn.set(chart.id, { ...drawPlot(Plot, place, chart, colours.css, onPoint), names });
  };
  onThemeChange(() => void plotAll(true));
  onLangChange(() => void plotAll(true));

  const card = (/** @type {Chart} */ { id, lines, isEmpty }) => {
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
  return {
    update(/** @type {Http.History} */ next) {
      history = next;
      draw(); // a plot needs its place
      void plotAll();
    },
    view: () =>
      html`<h3>${t("admin.last_hour")}</h3>
        <div role="alert">${failure ? noticeView(failure, { kind: "caution" }) : nothing}</div>
        <div class="admin-charts" ?hidden=${failure !== null}>${chartsOf(history ?? NO_HISTORY).map(card)}</div>
        <details class="panel" id="chart-numbers" ?open=${failure !== null}>
          <summary>${t("admin.as_table")}</summary>
          <div class="admin-wide">
            ${table("numbers", history && spansOf(history, SPAN_S), ({ startS }) => String(startS), SPAN_COLUMNS, "numbers_caption")}
          </div>
        </details>`,
  };
}

/** Loads the library's style sheet; if it fails, charts are drawn without it. */
const addStyles = () =>
  new Promise((done) => {
    const link = document.createElement("link");
    document.head.append(Object.assign(link, { rel: "stylesheet", href: STYLES, onload: done, onerror: done }));
  });

const legendEntry = (/** @type {Line} */ line, /** @type {number | null} */ value) =>
  html`<li>
    <span class="admin-swatch" data-tone=${line.tone} data-dashed=${line.isDashed ? "true" : "false"}></span
    ><span>${lineName(line)}</span><span class="number admin-legend-value">${figure(line, value)}</span>
  </li>`;

// A chart, drawn by uPlot in the theme's colours; follows the size of its container.

const HEIGHT_SHARE = 0.42; // of the width
const MIN_HEIGHT_PX = 150;
const MAX_HEIGHT_PX = 300;

/**
 * @param {Library} UPlot
 * @param {HTMLElement} el
 * @param {Chart} chart
 * @param {(token: string, alpha?: number) => string} css colours of the theme
 * @param {(values: (number | null)[]) => void} onPoint values at the pointer, else the latest ones
 */
function drawPlot(UPlot, el, chart, css, onPoint) {
  let current = chart;
  const tell = (/** @type {import("uplot")} */ plot) => {
    const at = plot.cursor.idx ?? null;
    onPoint(current.lines.map(({ values }) => (at === null ? latest(values) : (values[at] ?? null))));
  };
  const plot = new UPlot(
    optionsOf(chart, { css, tell, size: sizeOf(el), font: `12px ${getComputedStyle(el).fontFamily}` }),
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
    update(/** @type {Chart} */ next) {
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

function sizeOf(/** @type {HTMLElement} */ el) {
  const width = Math.floor(el.clientWidth);
  return { width, height: Math.round(Math.min(MAX_HEIGHT_PX, Math.max(MIN_HEIGHT_PX, width * HEIGHT_SHARE))) };
}
