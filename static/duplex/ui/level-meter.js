// @ts-check
/**
 * A level as a bar that falls slower than it rises, with the peak held for a moment.
 */

import { h, icon, setText } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { toDb } from "../../shared/pcm.js";
import { formatNumber } from "../../shared/formats.js";

/** Quietest level shown; speech close to a microphone lies between -35 and -15 dB. */
const FLOOR_DB = -60;
const CEILING_DB = -8;
const FALL_PER_FRAME = 0.02;
const PEAK_HOLD_MS = 1_200;
/** Screen readers need the value now and then only. */
const SPOKEN_EVERY_MS = 1_000;

/**
 * A level as a share of the bar.
 *
 * @param {number} rms
 * @returns {number} 0 to 1
 */
export function levelShare(rms) {
  if (rms <= 0) return 0;
  return Math.min(1, Math.max(0, (toDb(rms) - FLOOR_DB) / (CEILING_DB - FLOOR_DB)));
}

/**
 * @param {HTMLElement} el
 * @param {{labelKey: string, iconName: string, kind: "listen" | "speak"}} look
 * @returns {{update: (rms: number, nowMs: number) => boolean}} `update` is called in each frame; true while
 *   the bar still moves
 */
export function mountLevelMeter(el, { labelKey, iconName, kind }) {
  const bar = h("span", { class: "meter-bar" });
  const peak = h("span", { class: "meter-peak" });
  const label = h("span", { class: "meter-label small" });
  const value = h("span", { class: "meter-value small number soft", "aria-hidden": "true" });
  const track = h(
    "span",
    { class: "meter-track", role: "meter", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 0 },
    bar,
    peak,
  );
  el.classList.add("meter");
  el.dataset.kind = kind;
  el.append(h("span", { class: "meter-icon" }, icon(iconName)), label, track, value);
  const name = () => {
    setText(label, t(labelKey));
    track.setAttribute("aria-label", t(labelKey));
  };
  onLangChange(name);
  name();

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
      const levelDb = FLOOR_DB + next * (CEILING_DB - FLOOR_DB);
      setText(value, next > 0 ? `${formatNumber(levelDb)} dB` : "—");
      return isMoving;
    },
  };
}
