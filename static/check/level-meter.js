// @ts-check
/**
 * The bar of the microphone's loudness, its lingering peak and the word for it.
 */

import { find, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";

/** @typedef {import("./level-judge.js").LevelView} LevelView */

const READER_INTERVAL_MS = 1_000; // how often a screen reader's number changes
const PERCENT = 100;

/**
 * @param {HTMLElement} el
 * @param {HTMLElement} words
 * @returns {{update: (view: LevelView) => void, clear: () => void}}
 */
export function mountLevelMeter(el, words) {
  const bar = find(el, ".meter-bar", HTMLElement);
  const hold = find(el, ".meter-hold", HTMLElement);
  /** @type {import("./level-judge.js").LevelWord | "off"} */
  let word = "off";
  let toldAtMs = 0;
  const draw = () => {
    el.dataset.word = word;
    setText(words, t(`check.level_${word}`));
    el.setAttribute("aria-valuetext", t(`check.level_${word}`));
  };
  onLangChange(draw);
  draw();
  return {
    update(view) {
      bar.style.setProperty("scale", `${view.bar} 1`);
      hold.style.setProperty("left", `${view.hold * PERCENT}%`);
      const nowMs = performance.now();
      if (nowMs - toldAtMs >= READER_INTERVAL_MS) {
        toldAtMs = nowMs;
        el.setAttribute("aria-valuenow", String(Math.round(view.bar * PERCENT)));
      }
      if (view.word === word) return;
      word = view.word;
      draw();
    },
    clear() {
      word = "off";
      bar.style.setProperty("scale", "0 1");
      hold.style.setProperty("left", "0%");
      el.setAttribute("aria-valuenow", "0");
      draw();
    },
  };
}
