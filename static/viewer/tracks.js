/** Tracks of the timeline: waveforms, the model's words, latencies, pictures. */

import { mountPainter, themeColours } from "../shared/canvas-tools.js";
import { find, html, render, repeat } from "../shared/lit.js";
import { formatClock, formatNumber, MS_PER_S, t } from "../shared/texts.js";
import { paintWaves, shareOf, spread, within } from "./time-axis.js";
import { openPeaks } from "./recording.js";
import { fetchBytes } from "./head-view.js";

/** @import { View } from "./time-axis.js" */
/** @import { PeakSource, Picture, Plan, SpokenTurn } from "./recording.js" */

// Waveforms: the user's above, the model's below.

/** @param {HTMLElement} el @param {() => void} onFailed the sound cannot be read */
export function mountWaves(el, onFailed) {
  const colours = themeColours(el);
  /** @type {View} */ let view = { fromS: 0, toS: 1 };
  /** @type {PeakSource | null} */ let source = null;
  render(html`<canvas aria-hidden="true"></canvas>`, el);
  const { request } = mountPainter(find(el, "canvas", HTMLCanvasElement), (ctx, width, height) => {
    if (!source) return;
    source.look(view);
    el.dataset.loudest = paintWaves(ctx, { width, height }, view, source.loudest, colours.css).toFixed(2);
  });
  return {
    /** @param {string} url URL of the stereo audio */
    open(url) {
      source = openPeaks((first, last) => fetchBytes(url, first, last), request, onFailed);
      request();
    },
    update(/** @type {View} */ wanted) {
      view = wanted;
      request();
    },
  };
}

// The model's turns as segments on the time axis; a click seeks.

/** @param {HTMLElement} el @param {SpokenTurn[]} turns @param {View} view @param {(atS: number) => void} onJump */
export function drawSegments(el, turns, view, onJump) {
  const segment = (/** @type {SpokenTurn} */ { number, startS, endS, text, isInterrupted }) => {
    const from = Math.max(0, shareOf(view, startS));
    const to = Math.min(1, shareOf(view, endS));
    return html`<button
      type="button"
      class="segment"
      title=${text}
      aria-label=${t("viewer.jump_to", { time: formatClock(startS), text })}
      data-turn=${number}
      data-interrupted=${isInterrupted ? "true" : "false"}
      .style=${`left: ${100 * from}%; width: ${100 * (to - from)}%`}
      @click=${() => onJump(startS)}
    >
      <span dir="auto">${text.trim()}</span>
    </button>`;
  };
  render(
    repeat(within(turns, view), ({ number }) => number, segment),
    el,
  );
}

// Duration of each unit against its budget.

const HEADROOM = 1.15;
const BAR_SHARE = 0.85; // of a unit's width

/** @param {HTMLElement} el @param {Plan} plan @param {View} view */
export function drawLatency(el, { units, unitS }, view) {
  const budgetMs = unitS * MS_PER_S;
  const answered = within(units, view).flatMap((unit) => (unit.wallMs === null ? [] : [{ ...unit, wallMs: unit.wallMs }]));
  const topMs = Math.max(budgetMs, ...answered.map(({ wallMs }) => wallMs)) * HEADROOM;
  const bar = (/** @type {typeof answered[number]} */ { startS, endS, mode, isLate, gapMs, wallMs }) => {
    const left = shareOf(view, startS);
    const width = BAR_SHARE * (shareOf(view, endS) - left);
    const place = `left: ${100 * left}%; width: ${100 * width}%; height: ${(100 * wallMs) / topMs}%`;
    return html`<i class="latency-bar" data-mark=${isLate ? "late" : mode} data-gap=${String(gapMs > 0)} .style=${place}></i>`;
  };
  render(
    html`${repeat(answered, ({ number }) => number, bar)}
      <div class="latency-budget" .style=${`top: ${100 * (1 - budgetMs / topMs)}%`}>
        <span>${t("viewer.ms", { n: formatNumber(budgetMs) })}</span>
      </div>`,
    el,
  );
}

// Pictures seen by the model: thumbnails on the time axis, and the current one enlarged.

const THUMB_PX = 92;

/**
 * @param {HTMLElement} el
 * @param {{pictures: Picture[], urlOf: (path: string) => string, onJump: (atS: number) => void}} options
 * @param {View} view
 * @param {number} widthPx
 */
export function drawThumbs(el, { pictures, urlOf, onJump }, view, widthPx) {
  const places = Math.max(1, Math.floor(widthPx / THUMB_PX));
  const thumbs = repeat(
    spread(pictures, view, places),
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
}

/** @param {HTMLImageElement} image @param {{pictures: Picture[], urlOf: (path: string) => string}} options */
export function mountBigFrame(image, { pictures, urlOf }) {
  let shown = -1;
  return (/** @type {number} */ atS) => {
    const begun = pictures.findLastIndex((picture) => picture.atS <= atS + 1e-6);
    const index = Math.max(0, begun);
    const picture = pictures[index];
    if (!picture) return;
    image.alt = t("viewer.picture_at", { time: formatClock(picture.atS) }); // the language may have changed
    if (index === shown) return;
    shown = index;
    image.src = urlOf(picture.path);
    image.dataset.unit = String(picture.unit);
    const next = pictures[index + 1];
    if (next) new Image().src = urlOf(next.path); // preloads it
  };
}
