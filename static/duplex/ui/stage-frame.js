// @ts-check
/**
 * The middle of every call page: the orb with a sign, the word for what goes on, a line of help, the clock.
 */

import { fill, h, icon, setText } from "../../shared/dom.js";
import { formatClock } from "../../shared/formats.js";
import { onLangChange } from "../../shared/i18n.js";
import { mountOrb } from "./orb.js";

/** @typedef {import("../lib/call-state.js").CallState} CallState */

const TICK_MS = 500;
const MS_PER_S = 1_000;

/**
 * @typedef {Object} StageLook
 * @property {CallState} callState of the orb
 * @property {string} sign icon inside the orb, so that colour is not alone
 * @property {string} word
 * @property {string} hint
 */

/**
 * @param {HTMLElement} el
 * @param {Object} source
 * @param {() => {inputRms: number, outputRms: number}} source.levels
 * @param {() => number | null} source.lengthMs of the call so far; null before it
 * @param {() => void} source.onLang the words are to be shown anew
 * @returns {{show: (look: StageLook) => void, close: () => void}}
 */
export function mountStageFrame(el, { levels, lengthMs, onLang }) {
  const canvas = h("canvas", { class: "orb" });
  const sign = h("span", { class: "orb-sign" });
  const word = h("p", { class: "state-word", role: "status", "aria-live": "polite" });
  const hint = h("p", { class: "state-hint soft" });
  const clock = h("p", { class: "call-clock number soft", role: "timer", "aria-live": "off" });
  el.classList.add("stage");
  el.append(h("div", { class: "orb-box" }, canvas, sign), word, hint, clock);
  const orb = mountOrb(canvas, { levels });

  const tick = () => {
    const ms = lengthMs();
    setText(clock, ms === null ? "" : formatClock(Math.floor(ms / MS_PER_S)));
  };
  const endLang = onLangChange(onLang);
  const timer = setInterval(tick, TICK_MS);
  return {
    show(look) {
      if (el.dataset.callState !== look.callState || sign.dataset.icon !== look.sign) {
        el.dataset.callState = look.callState;
        sign.dataset.icon = look.sign;
        fill(sign, icon(look.sign));
        orb.update(look.callState);
      }
      setText(word, look.word);
      setText(hint, look.hint);
      tick();
    },
    close() {
      clearInterval(timer);
      endLang();
      orb.close();
    },
  };
}
