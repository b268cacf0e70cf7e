// @ts-check
/**
 * The middle of the half-duplex page: the orb, the word for what goes on, a line of help, the clock.
 */

import { fill, h, icon, setText } from "../../shared/dom.js";
import { formatClock } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { halfMoodOf, orbMoodOf } from "../lib/half-look.js";
import { mountOrb } from "./orb.js";

/** @typedef {import("../lib/half-duplex-state.js").HalfState} HalfState */
/** @typedef {import("../lib/half-look.js").HalfMood} HalfMood */

const TICK_MS = 500;
const MS_PER_S = 1_000;

/** A sign inside the orb, so that colour is not alone. @type {Readonly<Record<HalfMood, string>>} */
const ICONS = Object.freeze({
  idle: "turns", connecting: "clock", waiting: "clock", preparing: "sparkle", listening: "mic", hearing: "wave",
  thinking: "sparkle", speaking: "speaker", interrupted: "hand", settling: "mic-off", stopping: "stop", ended: "check",
});

/**
 * @param {HTMLElement} el
 * @param {{levels: () => {inputRms: number, outputRms: number}, nowMs?: () => number}} options
 */
export function mountHalfStage(el, { levels, nowMs = () => performance.now() }) {
  const canvas = h("canvas", { class: "orb" });
  const sign = h("span", { class: "orb-sign" });
  const word = h("p", { class: "mood-word", role: "status", "aria-live": "polite" });
  const hint = h("p", { class: "mood-hint soft" });
  const clock = h("p", { class: "call-clock number soft", role: "timer", "aria-live": "off" });
  el.classList.add("stage");
  el.append(h("div", { class: "orb-box" }, canvas, sign), word, hint, clock);
  const orb = mountOrb(canvas, { levels });

  /** @type {HalfState | null} */
  let state = null;
  let isMuted = false;
  const tick = () => {
    const startMs = state?.preparedAtMs ?? null;
    const lengthMs = startMs === null ? 0 : (state?.endedAtMs ?? nowMs()) - startMs;
    setText(clock, startMs === null ? "" : formatClock(Math.floor(lengthMs / MS_PER_S)));
  };
  const draw = () => {
    if (!state) return;
    const mood = halfMoodOf(state);
    if (el.dataset.activity !== mood) {
      el.dataset.activity = mood;
      el.dataset.mood = orbMoodOf(mood);
      fill(sign, icon(ICONS[mood]));
      orb.update(orbMoodOf(mood));
    }
    const isHushed = isMuted && (mood === "listening" || mood === "hearing");
    setText(word, t(`half.mood.${mood}`));
    setText(hint, t(isHushed ? "half.hint.muted" : `half.hint.${mood}`));
    tick();
  };
  const endLang = onLangChange(draw);
  const timer = setInterval(tick, TICK_MS);
  return {
    /** @param {HalfState} next @param {boolean} isMicMuted */
    update(next, isMicMuted) {
      state = next;
      isMuted = isMicMuted;
      draw();
    },
    close() {
      clearInterval(timer);
      endLang();
      orb.close();
    },
  };
}
