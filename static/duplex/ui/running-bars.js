// @ts-check
/**
 * The last seconds of sound as bars that run to the left, each in the colour of what it was.
 */

import { mountPainter, themeColours } from "../../shared/canvas-tools.js";
import { LevelHistory } from "../lib/level-history.js";

/** @typedef {import("../lib/level-history.js").LevelKind} LevelKind */

const GAP_PX = 2;
const LEAST_PX = 2;
const CLOSED_ALPHA = 0.4;

/** @type {Readonly<Record<LevelKind, string>>} */
const COLOURS = Object.freeze({ quiet: "idle", speech: "listen", answer: "speak", closed: "line-strong" });

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{kept: number, barPx: number}} options `kept`: how many bars are remembered
 */
export function mountRunningBars(canvas, { kept, barPx }) {
  const history = new LevelHistory(kept);
  const colours = themeColours(canvas);
  const painter = mountPainter(canvas, (ctx, width, height) => {
    const stepPx = barPx + GAP_PX;
    const count = Math.min(history.length, Math.ceil(width / stepPx));
    for (let age = 0; age < count; age += 1) {
      const { share, kind } = history.at(age);
      const heightPx = Math.max(LEAST_PX, share * height);
      ctx.fillStyle = colours.css(COLOURS[kind], kind === "closed" ? CLOSED_ALPHA : 1);
      ctx.beginPath();
      ctx.roundRect(width - (age + 1) * stepPx, (height - heightPx) / 2, barPx, heightPx, barPx / 2);
      ctx.fill();
    }
  });
  return {
    /** @param {number} share of the height, 0 to 1 @param {LevelKind} kind */
    push(share, kind) {
      history.push(share, kind);
      painter.request();
    },
    clear() {
      history.clear();
      painter.request();
    },
    close() {
      painter.close();
      colours.close();
    },
  };
}
