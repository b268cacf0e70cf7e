/** A level meter: bar, held peak, and the level in dB; the same wherever a level is shown. */

import { find, html, icon, mountView, setText } from "./lit.js";
import { formatNumber, t } from "./texts.js";
import { createMeterMotion, LEAST_SHOWN_DB, shareOfDb, toDb } from "./pcm.js";

const ANNOUNCED_EVERY_MS = 1_000; // how often the value changes for screen readers

/** @typedef {ReturnType<typeof mountLevelMeter>} LevelMeter */

/** @param {HTMLElement} el @param {{labelKey: string, sign: string, kind?: "listen" | "speak"}} look */
export function mountLevelMeter(el, { labelKey, sign, kind = "listen" }) {
  el.classList.add("meter");
  el.dataset.kind = kind;
  // Parts that change with each frame are updated in place.
  mountView(
    el,
    () =>
      html`<span class="meter-sign">${icon(sign)}</span><span class="meter-label small">${t(labelKey)}</span
        ><span
          class="meter-track"
          role="meter"
          aria-valuemin=${LEAST_SHOWN_DB}
          aria-valuemax="0"
          aria-valuenow=${LEAST_SHOWN_DB}
          aria-label=${t(labelKey)}
          ><span class="meter-bar"></span><span class="meter-peak"></span></span
        ><span class="meter-value small number soft" aria-hidden="true"></span>`,
  );
  const [bar, peak, track, value] = ["bar", "peak", "track", "value"].map((name) => find(el, `.meter-${name}`));
  let motion = createMeterMotion();
  let announcedAtMs = -Infinity;
  const announce = (/** @type {number} */ barDb) => {
    track.setAttribute("aria-valuenow", String(Math.round(barDb)));
    setText(value, barDb > LEAST_SHOWN_DB ? `${formatNumber(barDb)} dB` : "—");
  };
  const place = (/** @type {number} */ barDb, /** @type {number} */ peakDb) => {
    bar.style.setProperty("--level", shareOfDb(barDb).toFixed(3));
    peak.style.setProperty("--at", shareOfDb(peakDb).toFixed(3));
  };
  return {
    track,
    /** Called in each frame. @param {number} rms @param {number} nowMs @returns {boolean} whether the bar is still moving */
    update(rms, nowMs) {
      const { barDb, peakDb } = motion(Math.min(0, toDb(rms)), nowMs);
      place(barDb, peakDb);
      const isMoving = barDb > LEAST_SHOWN_DB || peakDb > LEAST_SHOWN_DB;
      if (isMoving && nowMs - announcedAtMs < ANNOUNCED_EVERY_MS) return true;
      announcedAtMs = isMoving ? nowMs : -Infinity; // a bar that begins to move says its value at once
      announce(barDb);
      return isMoving;
    },
    clear() {
      motion = createMeterMotion();
      place(LEAST_SHOWN_DB, LEAST_SHOWN_DB);
      announce(LEAST_SHOWN_DB);
    },
  };
}
