// @ts-check
/**
 * The last seconds of sound as a running waveform: what the server takes for speech, and the answer.
 */

import { h, setText } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { levelShare } from "./level-meter.js";
import { mountRunningBars } from "./running-bars.js";

/** @typedef {import("../lib/half-duplex-state.js").HalfState} HalfState */
/** @typedef {import("../lib/level-history.js").LevelKind} LevelKind */

const TICK_MS = 50;
const KEPT = 1_200; // a minute, wider than any screen shows
const BAR_PX = 4;

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
  const bars = mountRunningBars(canvas, { kept: KEPT, barPx: BAR_PX });

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
    bars.push(levelShare(kind === "answer" ? outputRms : inputRms), kind);
    drawLamp(kind);
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
    clear: bars.clear,
    close() {
      clearInterval(timer);
      endLang();
      bars.close();
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
