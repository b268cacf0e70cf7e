/** Tracks of the timeline: waveforms, latencies, pictures. */

import { mountPainter, themeColours } from "../shared/canvas-tools.js";
import { find, html, render, repeat } from "../shared/lit.js";
import { formatClock, formatNumber, t } from "../shared/texts.js";
import { indexAt, shareOf, spread, timeAt, within } from "./time-axis.js";
import { openPeaks } from "./recording.js";
import { fetchBytes } from "./head-view.js";

/** @import { View } from "./time-axis.js" */
/** @import { PeakSource, Picture, Plan } from "./recording.js" */

/**
 * A canvas that shows the visible part of a recording.
 * @param {HTMLElement} el
 * @param {(ctx: CanvasRenderingContext2D, width: number, height: number, view: View) => void} draw
 */
function mountTrackCanvas(el, draw) {
  /** @type {View} */ let view = { fromS: 0, toS: 1 };
  render(html`<canvas aria-hidden="true"></canvas>`, el);
  const canvas = find(el, "canvas", HTMLCanvasElement);
  const { request } = mountPainter(canvas, (ctx, width, height) => draw(ctx, width, height, view));
  return {
    request,
    update(/** @type {View} */ wanted) {
      view = wanted;
      request();
    },
  };
}

// Waveforms: the user's above, the model's below.

const BAR_PX = 2;
const BAR_STEP_PX = 3;
const FULL_SCALE = 0.6; // speech is rarely louder; louder peaks are clipped

/** @param {HTMLElement} el @param {() => void} onFailed the sound cannot be read */
export function mountWaves(el, onFailed) {
  const colours = themeColours(el);
  /** @type {PeakSource | null} */ let source = null;
  /** @type {View} */ let wanted = { fromS: 0, toS: 1 };
  const track = mountTrackCanvas(el, (ctx, width, height, view) => {
    if (!source) return;
    const bars = Math.ceil(width / BAR_STEP_PX);
    let loudest = 0;
    for (const [channel, tone] of ["listen", "speak"].entries()) {
      ctx.fillStyle = colours.css(tone);
      for (let bar = 0; bar < bars; bar += 1) {
        const peak = source.loudest(channel, { fromS: timeAt(view, bar / bars), toS: timeAt(view, (bar + 1) / bars) });
        const tall = Math.max(1, (Math.min(1, peak / FULL_SCALE) * height) / 2);
        ctx.fillRect(bar * BAR_STEP_PX, (channel + 0.5) * (height / 2) - tall / 2, BAR_PX, tall);
        loudest = Math.max(loudest, peak);
      }
    }
    el.dataset.loudest = loudest.toFixed(2);
  });
  return {
    /** @param {string} url URL of the stereo audio */
    open(url) {
      source = openPeaks((first, last) => fetchBytes(url, first, last), track.request, onFailed);
      source.look(wanted);
    },
    update(/** @type {View} */ view) {
      wanted = view;
      source?.look(view);
      track.update(view);
    },
  };
}

// Duration of each unit against its budget.

const HEADROOM = 1.15;
const BAR_SHARE = 0.85; // of a unit's width
const BAR_MOST_PX = 200;
const DOT_PX = 3.5;
const DASH = [5, 4];
const LABEL_PX = 11;
const MS_PER_S = 1_000;

export function mountLatency(/** @type {HTMLElement} */ el, /** @type {Plan} */ { units, unitS }) {
  const colours = themeColours(el);
  const budgetMs = unitS * MS_PER_S;
  return mountTrackCanvas(el, (ctx, width, height, view) => {
    const answered = within(units, view).flatMap((unit) => (unit.wallMs === null ? [] : [{ ...unit, wallMs: unit.wallMs }]));
    const topMs = Math.max(budgetMs, ...answered.map(({ wallMs }) => wallMs)) * HEADROOM;
    const yAt = (/** @type {number} */ ms) => height * (1 - ms / topMs);
    for (const { startS, endS, mode, isLate, gapMs, wallMs } of answered) {
      const left = shareOf(view, startS) * width;
      const size = Math.min(BAR_MOST_PX, (shareOf(view, endS) * width - left) * BAR_SHARE);
      ctx.fillStyle = colours.css(isLate ? "interrupt" : mode);
      ctx.fillRect(left, yAt(wallMs), size, height - yAt(wallMs));
      if (gapMs === 0) continue;
      ctx.fillStyle = colours.css("bad");
      ctx.beginPath();
      ctx.arc(left, yAt(wallMs), DOT_PX, 0, 2 * Math.PI);
      ctx.fill();
    }
    drawBudget(ctx, width, yAt(budgetMs), t("viewer.ms", { n: formatNumber(budgetMs) }), colours);
  });
}

/** @param {CanvasRenderingContext2D} ctx @param {number} right @param {number} y @param {string} words @param {ReturnType<typeof themeColours>} colours */
function drawBudget(ctx, right, y, words, colours) {
  ctx.strokeStyle = colours.css("ink-soft");
  ctx.setLineDash(DASH);
  ctx.beginPath();
  ctx.moveTo(0, y);
  ctx.lineTo(right, y);
  ctx.stroke();
  ctx.font = `${LABEL_PX}px ${getComputedStyle(ctx.canvas).fontFamily}`;
  ctx.textAlign = "right";
  ctx.textBaseline = "top";
  const size = ctx.measureText(words).width;
  ctx.fillStyle = colours.css("surface", 0.85); // the columns may be behind it
  ctx.fillRect(right - size - 6, y + 2, size + 4, LABEL_PX + 3);
  ctx.fillStyle = colours.css("ink-soft");
  ctx.fillText(words, right - 4, y + 3);
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
  return {
    update(/** @type {View} */ wanted) {
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
