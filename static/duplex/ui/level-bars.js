// @ts-check
/**
 * The last seconds of a call as running bars: what was heard and what was said.
 */

import { h } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { levelShare } from "./level-meter.js";
import { mountRunningBars } from "./running-bars.js";

const TICK_MS = 50;
const KEPT = 400;
const BAR_PX = 3;

/**
 * @param {HTMLElement} el
 * @param {{levels: () => {inputRms: number, outputRms: number}, isLive: () => boolean}} source
 */
export function mountLevelBars(el, { levels, isLive }) {
  const canvas = h("canvas", { class: "level-bars", role: "img" });
  el.append(canvas);
  const bars = mountRunningBars(canvas, { kept: KEPT, barPx: BAR_PX });
  setInterval(() => {
    if (!isLive() || document.hidden) return;
    const { inputRms, outputRms } = levels();
    const [heard, said] = [levelShare(inputRms), levelShare(outputRms)];
    bars.push(Math.max(heard, said), said > heard ? "answer" : "speech");
  }, TICK_MS);
  const name = () => canvas.setAttribute("aria-label", t("omni.levels"));
  onLangChange(name);
  name();
  return { clear: bars.clear };
}
