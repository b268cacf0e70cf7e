// @ts-check
/**
 * The buttons of a live call. They tell wishes; what is possible follows from the session's state.
 */

import { fill, h } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { controlsFor } from "../lib/call-state.js";
import { keepFocus, showCallButton } from "./call-button.js";

/** @typedef {import("../lib/duplex-types.js").SessionState} SessionState */

/**
 * @typedef {Object} CallActions
 * @property {() => void} start
 * @property {() => void} stop
 * @property {() => void} pauseToggle
 * @property {() => void} interrupt
 * @property {() => void} toggleForceListen
 * @property {() => void} toggleMute
 */

/**
 * @typedef {Object} ControlsView
 * @property {SessionState} state
 * @property {boolean} isMuted
 * @property {boolean} canMute a file has no microphone to mute
 * @property {boolean} isStarting a device is being opened
 */

/**
 * @param {HTMLElement} el
 * @param {CallActions} actions
 * @param {{startKey?: string}} [options]
 * @returns {{update: (view: ControlsView) => void}}
 */
export function mountCallControls(el, actions, { startKey = "live.start" } = {}) {
  const button = (/** @type {string} */ action, /** @type {string} */ style, /** @type {() => void} */ run) =>
    h("button", { type: "button", class: `button ${style}`, dataset: { action }, on: { click: unlessDisabled(run) } });
  const start = button("start", "button-primary button-large call-start", () => actions.start());
  const stop = button("stop", "button-danger call-button", () => actions.stop());
  const pause = button("pause", "call-button", () => actions.pauseToggle());
  const interrupt = button("interrupt", "call-button", () => actions.interrupt());
  const force = button("force-listen", "call-button", () => actions.toggleForceListen());
  const mute = button("mute", "call-button", () => actions.toggleMute());
  el.classList.add("call-controls");
  el.setAttribute("role", "group");
  fill(el, start, mute, interrupt, force, pause, stop);

  /** @type {ControlsView | null} */
  let latest = null;
  const draw = () => {
    el.setAttribute("aria-label", t("live.controls"));
    if (!latest) return;
    const { state, isMuted, canMute, isStarting } = latest;
    const can = controlsFor(state);
    const focused = document.activeElement;
    showCallButton(start, can.canStart, "mic", t(state.phase === "ended" ? "live.start_again" : startKey));
    disable(start, isStarting);
    showCallButton(
      stop,
      can.canStop || state.phase === "stopping",
      state.preparedAtMs === null ? "close" : "stop",
      t(stopKey(state)),
    );
    disable(stop, !can.canStop);
    showCallButton(pause, can.isTalk, can.canResume ? "play" : "pause", t(can.canResume ? "live.resume" : "live.pause"));
    showCallButton(interrupt, can.isTalk, "hand", t("live.interrupt"));
    disable(interrupt, !can.canInterrupt);
    showCallButton(force, can.isTalk, "wave", t("live.force_listen"));
    force.setAttribute("aria-pressed", String(state.isForceListen));
    force.title = t("live.force_listen_hint");
    showCallButton(mute, can.isTalk && canMute, isMuted ? "mic-off" : "mic", t("live.mute"));
    mute.setAttribute("aria-pressed", String(isMuted));
    keepFocus(el, focused);
  };
  onLangChange(draw);
  return {
    update(view) {
      latest = view;
      draw();
    },
  };
}

/** @param {SessionState} state */
function stopKey({ phase, preparedAtMs }) {
  if (phase === "queued") return "queue.cancel";
  return preparedAtMs === null ? "common.cancel" : "live.stop";
}

/**
 * A button that cannot be pressed now keeps its focus, so it is not disabled for the browser.
 *
 * @param {HTMLButtonElement} button
 * @param {boolean} isDisabled
 */
function disable(button, isDisabled) {
  button.setAttribute("aria-disabled", String(isDisabled));
}

/**
 * @param {() => void} run
 * @returns {(event: Event) => void}
 */
function unlessDisabled(run) {
  return ({ currentTarget }) => {
    if (currentTarget instanceof Element && currentTarget.getAttribute("aria-disabled") !== "true") run();
  };
}
