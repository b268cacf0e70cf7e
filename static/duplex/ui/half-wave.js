// @ts-check
/**
 * The last seconds of sound as a running waveform: what the server takes for speech, and the answer.
 */

import { h, setText } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { LevelHistory } from "../lib/level-history.js";
import { mountPainter, themeColours } from "./canvas-tools.js";
import { levelShare } from "./level-meter.js";

/** @typedef {import("../lib/half-duplex-state.js").HalfState} HalfState */
/** @typedef {import("../lib/level-history.js").LevelKind} LevelKind */

const TICK_MS = 50;
const KEPT = 1_200; // a minute, wider than any screen shows
const BAR_PX = 4;
const GAP_PX = 2;
const LEAST_PX = 2;

/** @type {Readonly<Record<LevelKind, string>>} */
const COLOURS = Object.freeze({ quiet: "idle", speech: "listen", answer: "speak", closed: "line-strong" });

/**
 * @param {HTMLElement} el
 * @param {{levels: () => {inputRms: number, outputRms: number}, state: () => HalfState}} source
 */
export function mountHalfWave(el, { levels, state }) {
  const canvas = h("canvas", { class: "wave-canvas", role: "img" });
  const lamp = h("p", { class: "wave-lamp badge", role: "status" });
  const words = h("span");
  lamp.append(h("span", { class: "dot" }), words);
  el.classList.add("wave");
  el.append(canvas, lamp);
  const history = new LevelHistory(KEPT);
  const colours = themeColours(el);
  const painter = mountPainter(canvas, (ctx, width, height) => {
    const count = Math.min(history.length, Math.ceil(width / (BAR_PX + GAP_PX)));
    for (let age = 0; age < count; age += 1) {
      const { share, kind } = history.at(age);
      const barPx = Math.max(LEAST_PX, share * height);
      ctx.fillStyle = colours.css(COLOURS[kind], kind === "closed" ? 0.4 : 1);
      ctx.beginPath();
      ctx.roundRect(width - (age + 1) * (BAR_PX + GAP_PX), (height - barPx) / 2, BAR_PX, barPx, BAR_PX / 2);
      ctx.fill();
    }
  });

  /** @type {LevelKind | "off" | ""} */
  let shown = "";
  const drawLamp = (/** @type {LevelKind | "off"} */ kind) => {
    if (kind === shown) return;
    shown = kind;
    lamp.dataset.hears = kind;
    setText(words, t(`half.hears.${kind}`));
  };
  const tick = () => {
    const now = state();
    if (now.phase !== "running") return drawLamp("off");
    const { inputRms, outputRms } = levels();
    const kind = kindOf(now);
    history.push(levelShare(kind === "answer" ? outputRms : inputRms), kind);
    drawLamp(kind);
    painter.request();
  };
  const name = () => {
    canvas.setAttribute("aria-label", t("half.wave"));
    const kind = shown || "off";
    shown = "";
    drawLamp(kind);
  };
  const endLang = onLangChange(name);
  name();
  const timer = setInterval(tick, TICK_MS);
  return {
    clear() {
      history.clear();
      painter.request();
    },
    close() {
      clearInterval(timer);
      endLang();
      painter.close();
      colours.close();
    },
  };
}

/**
 * @param {HalfState} state
 * @returns {LevelKind}
 */
function kindOf({ activity, isMicMuted }) {
  if (activity === "speaking" || activity === "interrupted") return "answer";
  if (isMicMuted || activity === "thinking" || activity === "settling") return "closed";
  return activity === "hearing" ? "speech" : "quiet";
}
