// @ts-check
/**
 * The last seconds of a call as running bars: what was heard and what was said.
 */

import { h } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { LevelHistory } from "../lib/level-history.js";
import { mountPainter, themeColours } from "./canvas-tools.js";
import { levelShare } from "./level-meter.js";

const TICK_MS = 50;
const KEPT = 400;
const BAR_PX = 3;
const GAP_PX = 2;
const LEAST_PX = 2;

/** @type {Readonly<Record<import("../lib/level-history.js").LevelKind, string>>} */
const COLOURS = Object.freeze({ quiet: "idle", speech: "listen", answer: "speak", closed: "line-strong" });

/**
 * @param {HTMLElement} el
 * @param {{levels: () => {inputRms: number, outputRms: number}, isLive: () => boolean}} source
 */
export function mountLevelBars(el, { levels, isLive }) {
  const canvas = h("canvas", { class: "level-bars", role: "img" });
  el.append(canvas);
  const history = new LevelHistory(KEPT);
  const colours = themeColours(el);
  const painter = mountPainter(canvas, (ctx, width, height) => {
    const count = Math.min(history.length, Math.ceil(width / (BAR_PX + GAP_PX)));
    for (let age = 0; age < count; age += 1) {
      const { share, kind } = history.at(age);
      const barPx = Math.max(LEAST_PX, share * height);
      ctx.fillStyle = colours.css(COLOURS[kind], 1);
      ctx.beginPath();
      ctx.roundRect(width - (age + 1) * (BAR_PX + GAP_PX), (height - barPx) / 2, BAR_PX, barPx, BAR_PX / 2);
      ctx.fill();
    }
  });
  setInterval(() => {
    if (!isLive() || document.hidden) return;
    const { inputRms, outputRms } = levels();
    const [heard, said] = [levelShare(inputRms), levelShare(outputRms)];
    history.push(Math.max(heard, said), said > heard ? "answer" : "speech");
    painter.request();
  }, TICK_MS);
  const name = () => canvas.setAttribute("aria-label", t("omni.levels"));
  onLangChange(name);
  name();
  return {
    clear() {
      history.clear();
      painter.request();
    },
  };
}
