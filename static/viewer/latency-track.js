// @ts-check
/**
 * How long each unit took, against the time it may take.
 */

import { themeColours, onThemeChange } from "../shared/canvas-tools.js";
import { on } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { loadUplot } from "../shared/vendor.js";
import { latencySeries } from "./latency-series.js";

/** @typedef {import("./unit-plan.js").Plan} Plan */
/** @typedef {import("./time-axis.js").View} View */

const HEIGHT_PX = 110;
const HEADROOM = 1.15;
const BAR_SHARE = 0.85; // of a unit's width
const BAR_MOST_PX = 200;
const DASH = [5, 4];
const MS_PER_S = 1_000;

/**
 * @param {HTMLElement} el
 * @param {Plan} plan
 */
export async function mountLatency(el, plan) {
  const Uplot = await loadUplot();
  const colours = themeColours(el);
  const series = latencySeries(plan);
  const budgetMs = plan.unitS * MS_PER_S;
  const bars = Uplot.paths.bars?.({ size: [BAR_SHARE, BAR_MOST_PX], align: 1 });
  const bar = (/** @type {string} */ colour) => ({
    fill: () => colours.css(colour),
    width: 0,
    paths: bars,
    points: { show: false },
  });
  const mark = (/** @type {string} */ colour, /** @type {number} */ size) => ({
    paths: () => null,
    points: { show: true, size, width: 0, fill: () => colours.css(colour) },
  });
  /** @type {View} */
  let view = { fromS: 0, toS: plan.durationS };
  const chart = new Uplot(
    {
      width: Math.max(1, el.clientWidth),
      height: HEIGHT_PX,
      padding: [0, 0, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      axes: [{ show: false }, { show: false }],
      scales: {
        x: { time: false, range: () => [view.fromS, view.toS] },
        y: { range: (_chart, _least, most) => [0, Math.max(budgetMs, most ?? 0) * HEADROOM] },
      },
      series: [{}, bar("listen"), bar("speak"), bar("interrupt"), mark("bad", 7)],
      hooks: { drawAxes: [(chart) => drawBudget(chart, budgetMs, colours)] },
    },
    series,
    el,
  );
  const resize = new ResizeObserver(() => {
    if (el.clientWidth > 0) chart.setSize({ width: el.clientWidth, height: HEIGHT_PX });
  });
  resize.observe(el);
  const redraw = () => chart.redraw(false, true);
  const ends = [onThemeChange(redraw), onLangChange(redraw), on(document.fonts, "loadingdone", redraw)];

  return {
    /** @param {View} wanted */
    update(wanted) {
      view = wanted;
      chart.setData(series, true);
    },
    close() {
      ends.forEach((end) => end());
      resize.disconnect();
      colours.close();
      chart.destroy();
    },
  };
}

/**
 * @param {import("uplot")} chart
 * @param {number} budgetMs
 * @param {ReturnType<typeof themeColours>} colours
 */
function drawBudget({ ctx, bbox, valToPos }, budgetMs, colours) {
  const scale = globalThis.devicePixelRatio || 1;
  const y = Math.round(valToPos(budgetMs, "y", true));
  ctx.save();
  ctx.strokeStyle = colours.css("ink-soft");
  ctx.lineWidth = scale;
  ctx.setLineDash(DASH.map((length) => length * scale));
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.fillStyle = colours.css("ink-soft");
  ctx.font = `${11 * scale}px ${getComputedStyle(ctx.canvas).fontFamily}`;
  ctx.textAlign = "right";
  ctx.textBaseline = "top";
  ctx.fillText(t("viewer.ms", { n: formatNumber(budgetMs) }), bbox.left + bbox.width - 4 * scale, y + 3 * scale);
  ctx.restore();
}
