/** Tracks of the timeline: waveforms, latencies, pictures. */

import { onThemeChange, themeColours } from "../shared/canvas-tools.js";
import { html, on, render, repeat } from "../shared/lit.js";
import { formatClock, formatNumber, onLangChange, t } from "../shared/texts.js";
import { loadUplot, loadWavesurfer } from "../shared/libraries.js";
import { indexAt, latencySeries, spread } from "./time-axis.js";
import { openPeaks } from "./recording.js";
import { fetchBytes } from "./head-view.js";

/** @import { View } from "./time-axis.js" */
/** @import { PeakSource, Picture, Plan } from "./recording.js" */

const LANE_PX = 52;
const MOST_PEAKS = 4_000; // more than the width of any screen
const FULL_SCALE = 0.6; // speech is rarely louder; louder peaks are clipped

/** @param {HTMLElement} el @param {{nonce: string, onFailed: () => void}} options `onFailed`: no audio could be loaded */
export async function mountWaves(el, { nonce, onFailed }) {
  const WaveSurfer = await loadWavesurfer();
  const colours = themeColours(el);
  const channels = () =>
    ["listen", "speak"].map((name) => ({ waveColor: colours.css(name), progressColor: colours.css(name), height: LANE_PX }));
  const waves = WaveSurfer.create({
    container: el,
    height: LANE_PX,
    interact: false,
    cursorWidth: 0,
    hideScrollbar: true,
    barWidth: 2,
    barGap: 1,
    barRadius: 1,
    maxPeak: FULL_SCALE,
    cspNonce: nonce,
    splitChannels: channels(),
    peaks: [[0], [0]],
    duration: 1,
  });
  /** @type {PeakSource | null} */ let source = null;
  /** @type {View} */ let view = { fromS: 0, toS: 1 };
  let frame = 0;

  const draw = () => {
    frame = 0;
    if (!source) return;
    const lines = source.peaks(view).slice(0, 2);
    el.dataset.loudest = Math.max(...lines.map((line) => line.reduce((most, value) => Math.max(most, value), 0))).toFixed(2);
    void waves.load("", lines.map(thinned), view.toS - view.fromS);
  };
  const request = () => {
    if (frame === 0) frame = requestAnimationFrame(draw);
  };
  onThemeChange(() => {
    waves.setOptions({ splitChannels: channels() });
    request();
  });

  return {
    /** @param {string} url URL of the stereo audio */
    open(url) {
      source = openPeaks((first, last) => fetchBytes(url, first, last), request, onFailed);
      source.look(view);
    },
    update(/** @type {View} */ wanted) {
      view = wanted;
      source?.look(view);
      request();
    },
  };
}

function thinned(/** @type {Float32Array} */ line) {
  const step = Math.ceil(line.length / MOST_PEAKS);
  if (step === 1) return line;
  const count = Math.ceil(line.length / step);
  const thin = new Float32Array(count);
  for (let index = 0; index < line.length; index += 1) {
    const slot = Math.floor(index / step);
    thin[slot] = Math.max(thin[slot], line[index]);
  }
  return thin;
}

// Duration of each unit against its budget.

const HEIGHT_PX = 110;
const HEADROOM = 1.15;
const BAR_SHARE = 0.85; // of a unit's width
const BAR_MOST_PX = 200;
const DASH = [5, 4];
const LABEL_PX = 11;
const MS_PER_S = 1_000;

export async function mountLatency(/** @type {HTMLElement} */ el, /** @type {Plan} */ plan) {
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
  /** @type {View} */ let view = { fromS: 0, toS: plan.durationS };
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
      hooks: { draw: [(chart) => drawBudget(chart, budgetMs, colours)] },
    },
    series,
    el,
  );
  new ResizeObserver(() => {
    if (el.clientWidth > 0) chart.setSize({ width: el.clientWidth, height: HEIGHT_PX });
  }).observe(el);
  const redraw = () => chart.redraw(false, true);
  onThemeChange(redraw);
  onLangChange(redraw);
  on(document.fonts, "loadingdone", redraw);

  return {
    update(/** @type {View} */ wanted) {
      view = wanted;
      chart.setData(series, true);
    },
  };
}

/** @param {import("uplot")} chart @param {number} budgetMs @param {ReturnType<typeof themeColours>} colours */
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
  ctx.font = `${LABEL_PX * scale}px ${getComputedStyle(ctx.canvas).fontFamily}`;
  ctx.textAlign = "right";
  ctx.textBaseline = "top";
  const words = t("viewer.ms", { n: formatNumber(budgetMs) });
  const [right, top] = [bbox.left + bbox.width - 4 * scale, y + 3 * scale];
  const width = ctx.measureText(words).width;
  ctx.fillStyle = colours.css("surface", 0.85); // the columns may be behind it
  ctx.fillRect(right - width - 2 * scale, top - scale, width + 4 * scale, (LABEL_PX + 3) * scale);
  ctx.fillStyle = colours.css("ink-soft");
  ctx.fillText(words, right, top);
  ctx.restore();
}

// Pictures seen by the model: thumbnails on the time axis, and the current one enlarged.

const THUMB_PX = 92;
const FALLBACK_PX = 900;

/**
 * @param {HTMLElement} el the strip
 * @param {{pictures: Picture[], urlOf: (path: string) => string, onJump: (atS: number) => void}} options
 */
export function mountFrameTrack(el, { pictures, urlOf, onJump }) {
  /** @type {View} */ let view = { fromS: 0, toS: 1 };
  const draw = () => {
    const places = Math.max(1, Math.floor((el.clientWidth || FALLBACK_PX) / THUMB_PX));
    const thumbs = repeat(
      spread(pictures, view, places, ({ atS }) => atS),
      ({ entry }) => entry.path,
      ({ entry: { atS, path }, share }) => {
        const label = t("viewer.picture_at", { time: formatClock(atS) });
        return html`<button
          type="button"
          class="thumb"
          .style=${`left: ${100 * share}%; width: ${100 / places}%`}
          aria-label=${label}
          title=${label}
          @click=${() => onJump(atS)}
        >
          <img src=${urlOf(path)} alt="" loading="lazy" decoding="async" draggable="false" />
        </button>`;
      },
    );
    render(thumbs, el);
  };
  new ResizeObserver(draw).observe(el);
  onLangChange(draw);
  return {
    update(/** @type {View} */ wanted) {
      if (wanted.fromS === view.fromS && wanted.toS === view.toS) return;
      view = wanted;
      draw();
    },
  };
}

/** @param {HTMLImageElement} image @param {{pictures: Picture[], urlOf: (path: string) => string}} options */
export function mountBigFrame(image, { pictures, urlOf }) {
  let shown = -1;
  return (/** @type {number} */ atS) => {
    const at = indexAt(pictures, atS + 1e-6, (picture) => picture.atS);
    const index = Math.max(0, at);
    const picture = pictures[index];
    if (!picture || index === shown) return;
    shown = index;
    image.src = urlOf(picture.path);
    image.alt = t("viewer.picture_at", { time: formatClock(picture.atS) });
    image.dataset.unit = String(picture.unit);
    const next = pictures[index + 1];
    if (next) new Image().src = urlOf(next.path); // preloads it
  };
}
