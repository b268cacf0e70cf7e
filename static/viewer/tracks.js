/** Tracks of the timeline: waveforms, latencies, pictures. */

import { mountPainter, themeColours } from "../shared/canvas-tools.js";
import { find, html, render, repeat } from "../shared/lit.js";
import { formatClock, t } from "../shared/texts.js";
import { indexAt, paintLatency, paintWaves, spread } from "./time-axis.js";
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

/** @param {HTMLElement} el @param {() => void} onFailed the sound cannot be read */
export function mountWaves(el, onFailed) {
  const colours = themeColours(el);
  /** @type {PeakSource | null} */ let source = null;
  const track = mountTrackCanvas(el, (ctx, width, height, view) => {
    source?.look(view);
    if (source) el.dataset.loudest = paintWaves(ctx, { width, height }, view, source.loudest, colours.css).toFixed(2);
  });
  return {
    /** @param {string} url URL of the stereo audio */
    open(url) {
      source = openPeaks((first, last) => fetchBytes(url, first, last), track.request, onFailed);
      track.request();
    },
    update: track.update,
  };
}

// Duration of each unit against its budget.

export function mountLatency(/** @type {HTMLElement} */ el, /** @type {Plan} */ plan) {
  const colours = themeColours(el);
  return mountTrackCanvas(el, (ctx, width, height, view) => paintLatency(ctx, { width, height }, view, plan, colours.css));
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
  let widthPx = FALLBACK_PX; // as last observed, because asking the strip would force a layout
  const draw = () => {
    const places = Math.max(1, Math.floor(widthPx / THUMB_PX));
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
  new ResizeObserver(([{ contentRect }]) => {
    widthPx = contentRect.width || FALLBACK_PX;
    draw();
  }).observe(el);
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
