// @ts-check
/**
 * The buttons of a half-duplex call. They tell wishes; what is possible follows from the state.
 */

import { fill, h } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { halfControlsFor } from "../lib/half-look.js";
import { keepFocus, showCallButton } from "./call-button.js";

/** @typedef {import("../lib/half-duplex-state.js").HalfState} HalfState */
/** @typedef {{start: () => void, stop: () => void, interrupt: () => void, toggleMute: () => void}} HalfActions */

/**
 * @param {HTMLElement} el
 * @param {HalfActions} actions
 */
export function mountHalfControls(el, actions) {
  const button = (/** @type {string} */ action, /** @type {string} */ style, /** @type {() => void} */ run) =>
    h("button", { type: "button", class: `button ${style}`, dataset: { action }, on: { click: run } });
  const start = button("start", "button-primary button-large call-start", () => actions.start());
  const mute = button("mute", "call-button", () => actions.toggleMute());
  const interrupt = button("interrupt", "call-button", () => actions.interrupt());
  const stop = button("stop", "button-danger call-button", () => {
    if (stop.getAttribute("aria-disabled") === "false") actions.stop();
  });
  el.classList.add("call-controls");
  el.setAttribute("role", "group");
  fill(el, start, mute, interrupt, stop);

  /** @type {{state: HalfState, isStarting: boolean, isMuted: boolean} | null} */
  let latest = null;
  const draw = () => {
    el.setAttribute("aria-label", t("half.controls"));
    if (!latest) return;
    const { state, isStarting, isMuted } = latest;
    const can = halfControlsFor(state, isStarting);
    const focused = document.activeElement;
    showCallButton(start, can.canStart, "mic", t(state.phase === "ended" ? "half.start_again" : "half.start"));
    showCallButton(mute, can.isTalk, isMuted ? "mic-off" : "mic", t("half.mute"));
    mute.setAttribute("aria-pressed", String(isMuted));
    showCallButton(interrupt, can.isTalk, "hand", t("half.stop_answer"));
    interrupt.disabled = !can.canInterrupt;
    showCallButton(stop, can.isStopShown, "stop", t(can.isTalk || state.phase === "stopping" ? "half.end" : "common.cancel"));
    stop.setAttribute("aria-disabled", String(!can.canStop)); // stays focused until the end
    keepFocus(el, focused);
  };
  onLangChange(draw);
  return {
    /** @param {HalfState} state @param {{isStarting: boolean, isMuted: boolean}} devices */
    update(state, { isStarting, isMuted }) {
      latest = { state, isStarting, isMuted };
      draw();
    },
  };
}
