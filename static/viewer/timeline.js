/** All tracks of a duplex recording on one time axis with one playhead. Requests positions by `onSeek`. */

import { find, html, mountView, on, render } from "../shared/lit.js";
import { formatClock, formatNumber, onLangChange, t } from "../shared/texts.js";
import { drawLatency, drawSegments, drawThumbs, mountWaves } from "./tracks.js";
import { firstView, fit, following, momentText, moved, paintOverview, shareOf, ticks, timeAt, zoomed } from "./time-axis.js";
import { mountPainter, themeColours } from "../shared/canvas-tools.js";

/** @import { View } from "./time-axis.js" */
/** @import { Plan } from "./recording.js" */

// Overview of the whole recording: speech, late units, visible part.

/**
 * For mouse and touch only; the slider below is the accessible equivalent.
 * @param {HTMLElement} el
 * @param {{plan: Plan, onSeek: (atS: number) => void}} options
 */
function mountOverview(el, { plan, onSeek }) {
  render(
    html`<canvas aria-hidden="true"></canvas>
      <div class="overview-frame"></div>
      <div class="overview-head"></div>`,
    el,
  );
  const canvas = find(el, "canvas", HTMLCanvasElement);
  const frame = find(el, ".overview-frame");
  const head = find(el, ".overview-head");
  const colours = themeColours(el);
  mountPainter(canvas, (ctx, width, height) => paintOverview(ctx, { width, height }, plan, colours.css));
  scrub([el], el, (share) => onSeek(share * plan.durationS));
  return (/** @type {View} */ { fromS, toS }, /** @type {number} */ atS) => {
    el.hidden = toS - fromS >= plan.durationS;
    frame.style.left = `${(100 * fromS) / plan.durationS}%`;
    frame.style.width = `${(100 * (toS - fromS)) / plan.durationS}%`;
    head.style.left = `${(100 * atS) / plan.durationS}%`;
  };
}

const TICK_PX = 90; // room for two labels, as the last one is left of its mark
const WHEEL_ZOOM = 1.2;
const DETAIL_S = 10; // below this, marks show tenths
const FALLBACK_PX = 1_000;

/** @param {HTMLElement} el @param {{plan: Plan, urlOf: (path: string) => string, onSeek: (atS: number) => void}} options */
export function mountTimeline(el, { plan, urlOf, onSeek }) {
  mountView(el, () => lanesView(plan));
  const part = (/** @type {string} */ name) => find(el, `.${name}`);
  const [root, head, axis, slider, wave] = ["timeline", "playhead", "lane-axis", "wave-slider", "wave"].map(part);
  const [text, frames, latency] = ["lane-text", "lane-frames", "latency"].map(part);
  const drawOverview = mountOverview(part("overview"), { plan, onSeek });
  const waves = mountWaves(wave, () => void (wave.dataset.state = "none"));
  let view = firstView(plan.durationS);
  let atS = 0;
  let widthPx = FALLBACK_PX; // of the lanes, as last observed, because asking for it would force a layout

  const drawHead = () => {
    const share = shareOf(view, atS);
    head.hidden = share < 0 || share > 1;
    head.style.left = `${100 * share}%`;
    drawOverview(view, atS);
    const moment = momentText(plan, atS);
    if (slider.getAttribute("aria-valuetext") === moment) return;
    slider.setAttribute("aria-valuenow", String(Math.round(atS)));
    slider.setAttribute("aria-valuetext", moment);
  };
  const setView = (/** @type {View} */ wanted) => {
    view = wanted;
    el.dataset.from = view.fromS.toFixed(1);
    el.dataset.to = view.toS.toFixed(1);
    drawAxis(axis, view, widthPx);
    drawSegments(text, plan.turns, view, onSeek);
    drawThumbs(frames, { pictures: plan.pictures, urlOf, onJump: onSeek }, view, widthPx);
    drawLatency(latency, plan, view);
    waves.update(view);
    drawHead();
  };
  /** Zooms around the playhead. @param {number} factor above 1 shows more; 0 shows as much as possible */
  const zoom = (factor) =>
    setView(factor === 0 ? fit({ fromS: 0, toS: plan.durationS }, plan.durationS) : zoomed(view, factor, atS, plan.durationS));
  /** Horizontal wheel pans, Ctrl+wheel zooms; vertical scrolling is left to the page. @param {WheelEvent} event */
  const onWheel = (event) => {
    const isZoom = event.ctrlKey || event.metaKey;
    if (!isZoom && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
    event.preventDefault();
    if (isZoom) zoom(event.deltaY > 0 ? WHEEL_ZOOM : 1 / WHEEL_ZOOM);
    else setView(moved(view, event.deltaX / root.clientWidth, plan.durationS));
  };
  scrub([slider, axis, text, part("lane-latency")], slider, (share) => onSeek(timeAt(view, share)));
  on(root, "wheel", onWheel, { passive: false });
  new ResizeObserver(([{ contentRect }]) => {
    widthPx = contentRect.width || FALLBACK_PX;
    setView(view);
  }).observe(axis);
  onLangChange(() => setView(view));
  setView(view);

  return {
    update(/** @type {number} */ nowS, /** @type {boolean} */ isPlaying) {
      atS = nowS;
      const wanted = following(view, atS, plan.durationS, isPlaying);
      if (wanted === view) drawHead();
      else setView(wanted);
    },
    zoom,
    setSound: waves.open,
  };
}

const lanesView = (/** @type {Plan} */ { durationS, pictures }) =>
  html`<div class="timeline">
    <div class="overview"></div>
    <div class="lanes">
      <div class="lane lane-axis" data-lane="axis"></div>
      <div class="lane lane-wave" data-lane="wave">
        <div
          class="wave-slider"
          role="slider"
          tabindex="0"
          aria-label=${t("viewer.timeline")}
          aria-valuemin="0"
          aria-valuemax=${Math.round(durationS)}
        >
          <div class="wave"></div>
        </div>
        <span class="lane-label small">${t("common.you")}</span>
        <span class="lane-label lane-label-low small">${t("common.model")}</span>
      </div>
      <div class="lane lane-text" data-lane="text"></div>
      <div class="lane lane-frames" data-lane="frames" ?hidden=${pictures.length === 0}></div>
      <div class="lane lane-latency" data-lane="latency">
        <div class="latency"></div>
        <span class="lane-label small">${t("viewer.latency")}</span>
      </div>
      <div class="playhead" aria-hidden="true"></div>
    </div>
  </div>`;

function drawAxis(/** @type {HTMLElement} */ axis, /** @type {View} */ view, /** @type {number} */ widthPx) {
  const marks = ticks(view, Math.max(2, Math.floor(widthPx / TICK_PX)));
  const isFine = view.toS - view.fromS < DETAIL_S && marks.some((mark) => !Number.isInteger(mark));
  const tick = (/** @type {number} */ mark) => {
    const share = shareOf(view, mark);
    const text = isFine ? t("viewer.seconds", { n: formatNumber(mark, 1) }) : formatClock(mark);
    return html`<span class="tick small number" data-edge=${share > 0.96 ? "end" : ""} .style=${`left: ${100 * share}%`}
      >${text}</span
    >`;
  };
  render(marks.map(tick), axis);
}

/**
 * Dragging over tracks moves the playhead; buttons on them still work.
 * @param {HTMLElement[]} places
 * @param {HTMLElement} ruler as wide as the view
 * @param {(share: number) => void} seek
 */
function scrub(places, ruler, seek) {
  const at = (/** @type {PointerEvent} */ { clientX }) => {
    const { left, width } = ruler.getBoundingClientRect();
    seek(Math.min(1, Math.max(0, (clientX - left) / width)));
  };
  for (const place of places) {
    on(place, "pointerdown", (/** @type {PointerEvent} */ event) => {
      const isButton = event.target instanceof Element && event.target.closest("button") !== null;
      if (isButton || event.button !== 0) return;
      place.setPointerCapture(event.pointerId);
      at(event);
    });
    on(place, "pointermove", (/** @type {PointerEvent} */ event) => {
      if (place.hasPointerCapture(event.pointerId)) at(event);
    });
  }
}
