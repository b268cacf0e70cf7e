// @ts-check
/** A level as a bar that falls slower than it rises, with the peak held for a moment. */

import { find, setText } from "../../shared/dom.js";
import { formatNumber } from "../../shared/formats.js";
import { t } from "../../shared/i18n.js";
import { html, icon, mountView } from "../../shared/lit.js";
import { levelShare, shareToDb } from "../../shared/pcm.js";

const FALL_PER_FRAME = 0.02;
const PEAK_HOLD_MS = 1_200;
/** Screen readers need the value now and then only. */
const SPOKEN_EVERY_MS = 1_000;

/**
 * @param {HTMLElement} el
 * @param {{labelKey: string, iconName: string, kind: "listen" | "speak"}} look
 * @returns {{update: (rms: number, nowMs: number) => boolean}} `update` is called in each frame; true while
 *   the bar still moves
 */
export function mountLevelMeter(el, { labelKey, iconName, kind }) {
  el.classList.add("meter");
  el.dataset.kind = kind;
  // What moves with each frame is changed in place.
  mountView(
    el,
    () =>
      html`<span class="meter-icon">${icon(iconName)}</span><span class="meter-label small">${t(labelKey)}</span
        ><span class="meter-track" role="meter" aria-valuemin="0" aria-valuemax="100" aria-valuenow="0" aria-label=${t(labelKey)}
          ><span class="meter-bar"></span><span class="meter-peak"></span></span
        ><span class="meter-value small number soft" aria-hidden="true"></span>`,
  );
  const [bar, peak, track, value] = ["bar", "peak", "track", "value"].map((name) => find(el, `.meter-${name}`, HTMLElement));

  let shown = -1;
  let peakShare = 0;
  let peakAtMs = 0;
  let spokenAtMs = 0;
  return {
    update(rms, nowMs) {
      const share = levelShare(rms);
      const next = Math.max(share, shown - FALL_PER_FRAME, 0);
      if (share >= peakShare || nowMs - peakAtMs > PEAK_HOLD_MS) {
        peakShare = share;
        peakAtMs = nowMs;
        peak.style.setProperty("--at", String(peakShare));
      }
      if (Math.abs(next - shown) > 0.004) {
        shown = next;
        bar.style.setProperty("--level", String(next));
      }
      const isMoving = next > 0 || share > 0;
      if (isMoving && nowMs - spokenAtMs < SPOKEN_EVERY_MS) return true;
      spokenAtMs = nowMs;
      track.setAttribute("aria-valuenow", String(Math.round(next * 100)));
      const levelDb = shareToDb(next);
      setText(value, next > 0 ? `${formatNumber(levelDb)} dB` : "—");
      return isMoving;
    },
  };
}
