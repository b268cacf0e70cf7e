// @ts-check
/**
 * Pictures the model saw: a strip of small ones on the time axis, and the one at the playhead large.
 */

import { formatClock } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { html, render, repeat } from "../shared/lit.js";
import { indexAt, spread } from "./time-axis.js";

/** @typedef {import("./unit-plan.js").Picture} Picture */
/** @typedef {import("./time-axis.js").View} View */

const THUMB_PX = 92;
const FALLBACK_PX = 900;

/**
 * @param {HTMLElement} el the strip
 * @param {{pictures: Picture[], urlOf: (path: string) => string, onJump: (atS: number) => void}} options
 */
export function mountFrameTrack(el, { pictures, urlOf, onJump }) {
  /** @type {View} */
  let view = { fromS: 0, toS: 1 };
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
  const resize = new ResizeObserver(draw);
  resize.observe(el);
  onLangChange(draw);
  return {
    /** @param {View} wanted */
    update(wanted) {
      if (wanted.fromS === view.fromS && wanted.toS === view.toS) return;
      view = wanted;
      draw();
    },
  };
}

/**
 * The picture at the playhead.
 *
 * @param {HTMLImageElement} image
 * @param {{pictures: Picture[], urlOf: (path: string) => string}} options
 */
export function mountBigFrame(image, { pictures, urlOf }) {
  let shown = -1;
  return {
    /** @param {number} atS */
    update(atS) {
      const index = Math.max(
        0,
        indexAt(pictures, atS + 1e-6, (picture) => picture.atS),
      );
      const picture = pictures[index];
      if (!picture || index === shown) return;
      shown = index;
      image.src = urlOf(picture.path);
      image.alt = t("viewer.picture_at", { time: formatClock(picture.atS) });
      image.dataset.unit = String(picture.unit);
      const next = pictures[index + 1];
      if (next) new Image().src = urlOf(next.path); // so that it is there in time
    },
  };
}
