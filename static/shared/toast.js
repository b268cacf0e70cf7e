// @ts-check
/**
 * Short messages at the foot of the page that go away by themselves.
 */

import { h } from "./dom.js";

const SHOWN_MS = 5_000;
const MOST_AT_ONCE = 4; // the oldest goes first

/** @returns {HTMLElement} */
function tray() {
  const found = document.querySelector(".toasts");
  if (found instanceof HTMLElement) return found;
  const made = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
  document.body.append(made);
  return made;
}

/**
 * Shows a message for five seconds.
 *
 * @param {string} text
 * @param {{action?: {label: string, run: () => void}, shownMs?: number}} [options]
 */
export function toast(text, { action, shownMs = SHOWN_MS } = {}) {
  const message = h("div", { class: "toast" }, h("span", {}, text));
  if (action) {
    const button = h("button", { type: "button", class: "button button-quiet" }, action.label);
    button.addEventListener("click", () => {
      message.remove();
      action.run();
    });
    message.append(button);
  }
  const place = tray();
  place.append(message);
  while (place.childElementCount > MOST_AT_ONCE) place.firstElementChild?.remove();
  setTimeout(() => message.remove(), shownMs);
}
