// @ts-check
/** The last seconds of sound as bars that run to the left, each in the colour of what it was; level meters beside them. */

import { mountPainter, themeColours } from "../../shared/canvas-tools.js";
import { find } from "../../shared/dom.js";
import { t } from "../../shared/i18n.js";
import { html, mountView } from "../../shared/lit.js";
import { LevelHistory } from "../lib/level-history.js";
import { levelShare } from "../../shared/pcm.js";

/** @typedef {import("../lib/level-history.js").LevelKind} LevelKind */
/** @typedef {() => {inputRms: number, outputRms: number}} Levels */
/** @typedef {import("../lib/half-duplex-state.js").HalfState} HalfState */

const TICK_MS = 50;
const KEPT = 1_200; // a minute, wider than any screen shows
const GAP_PX = 2;
const LEAST_PX = 2;
const CLOSED_ALPHA = 0.4;

/** @type {Readonly<Record<LevelKind, string>>} */
const COLOURS = Object.freeze({ quiet: "idle", speech: "listen", answer: "speak", closed: "line-strong" });

/** @param {HTMLCanvasElement} canvas @param {number} barPx */
function runningBars(canvas, barPx) {
  const history = new LevelHistory(KEPT);
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
  };
}

/**
 * What was heard and what was said.
 *
 * @param {HTMLElement} el
 * @param {{levels: Levels, isLive: () => boolean}} source
 */
export function mountLevelBars(el, { levels, isLive }) {
  mountView(el, () => html`<canvas class="level-bars" role="img" aria-label=${t("omni.levels")}></canvas>`);
  const bars = runningBars(find(el, "canvas", HTMLCanvasElement), 3);
  setInterval(() => {
    if (!isLive() || document.hidden) return;
    const { inputRms, outputRms } = levels();
    const [heard, said] = [levelShare(inputRms), levelShare(outputRms)];
    bars.push(Math.max(heard, said), said > heard ? "answer" : "speech");
  }, TICK_MS);
  return { clear: bars.clear };
}

/**
 * What the server takes for speech, and the answer; with a lamp that says which in words.
 *
 * @param {HTMLElement} el
 * @param {{levels: Levels, state: () => HalfState}} source
 */
export function mountHalfWave(el, { levels, state }) {
  /** @type {LevelKind | "off"} */
  let hears = "off";
  el.classList.add("wave");
  const draw = mountView(
    el,
    () =>
      html`<canvas class="wave-canvas" role="img" aria-label=${t("half.wave")}></canvas>
        <p class="wave-lamp badge" role="status" data-hears=${hears}>
          <span class="dot"></span><span>${t(`half.hears.${hears}`)}</span>
        </p>`,
  );
  const bars = runningBars(find(el, "canvas", HTMLCanvasElement), 4);
  setInterval(() => {
    const now = state();
    const kind = now.phase === "running" ? kindOf(now) : "off";
    if (kind !== "off") {
      const { inputRms, outputRms } = levels();
      bars.push(levelShare(kind === "answer" ? outputRms : inputRms), kind);
    }
    if (kind === hears) return;
    hears = kind;
    draw();
  }, TICK_MS);
  return { clear: bars.clear };
}

/** @param {HalfState} state @returns {LevelKind} */
function kindOf({ activity, isMicMuted }) {
  if (activity === "speaking" || activity === "interrupted") return "answer";
  if (isMicMuted || activity === "thinking" || activity === "settling") return "closed";
  return activity === "hearing" ? "speech" : "quiet";
}
