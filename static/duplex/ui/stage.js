// @ts-check
/**
 * The middle of a live page: the orb, the word for what goes on, a line of help, the clock.
 */

import { h, icon, fill, setText } from "../../shared/dom.js";
import { formatClock } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { moodOf } from "../lib/mood.js";
import { runningMs } from "../lib/session-state.js";
import { mountOrb } from "./orb.js";

/** @typedef {import("../lib/session-state.js").SessionState} SessionState */
/** @typedef {import("../lib/mood.js").Mood} Mood */

const TICK_MS = 500;
const MS_PER_S = 1_000;

/** A sign inside the orb, so that colour is not alone. @type {Readonly<Record<Mood, string>>} */
const MOOD_ICONS = Object.freeze({
  idle: "mic",
  connecting: "clock",
  waiting: "clock",
  preparing: "sparkle",
  listening: "mic",
  thinking: "sparkle",
  speaking: "speaker",
  interrupted: "hand",
  pausing: "pause",
  paused: "pause",
  stopping: "stop",
  ended: "check",
});

/**
 * @param {HTMLElement} el
 * @param {{levels: () => {inputRms: number, outputRms: number}, nowMs?: () => number, hintFor?: (state: SessionState) => string | null}} options
 *   `hintFor` may give its own line of help
 * @returns {{update: (state: SessionState, isMuted: boolean) => void, close: () => void}}
 */
export function mountStage(el, { levels, nowMs = () => performance.now(), hintFor = () => null }) {
  const canvas = h("canvas", { class: "orb" });
  const sign = h("span", { class: "orb-sign" });
  const word = h("p", { class: "mood-word", role: "status", "aria-live": "polite" });
  const hint = h("p", { class: "mood-hint soft" });
  const clock = h("p", { class: "call-clock number soft", role: "timer", "aria-live": "off" });
  el.classList.add("stage");
  el.append(h("div", { class: "orb-box" }, canvas, sign), word, hint, clock);
  const orb = mountOrb(canvas, { levels });

  /** @type {SessionState | null} */
  let state = null;
  let isMuted = false;
  const tick = () => setText(clock, state?.preparedAtMs ? formatClock(Math.floor(runningMs(state, nowMs()) / MS_PER_S)) : "");
  const draw = () => {
    if (!state) return;
    const mood = moodOf(state);
    const isBroken = mood === "ended" && state.end?.isByUser === false;
    const iconName = isBroken ? "warning" : MOOD_ICONS[mood];
    if (el.dataset.mood !== mood || sign.dataset.icon !== iconName) {
      el.dataset.mood = mood;
      sign.dataset.icon = iconName;
      fill(sign, icon(iconName));
      orb.update(mood);
    }
    setText(word, t(`live.mood.${mood}`));
    setText(hint, hintFor(state) ?? (isBroken ? t("live.hint.broken") : defaultHint(mood, isMuted)));
    tick();
  };
  const endLang = onLangChange(draw);
  const timer = setInterval(tick, TICK_MS);
  return {
    update(next, muted) {
      state = next;
      isMuted = muted;
      draw();
    },
    close() {
      clearInterval(timer);
      endLang();
      orb.close();
    },
  };
}

/**
 * @param {Mood} mood
 * @param {boolean} isMuted
 */
function defaultHint(mood, isMuted) {
  if (isMuted && (mood === "listening" || mood === "speaking")) return t("live.hint.muted");
  return t(`live.hint.${mood}`);
}
