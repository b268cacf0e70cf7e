// @ts-check
/** Short messages at the foot of the page that go away by themselves. */

import { html, nothing, render } from "./lit.js";
import { problemText } from "./problems.js";

const SHOWN_MS = 5_000;
const MOST_AT_ONCE = 4; // the oldest goes first

/** While a dialog is open, nothing outside of it is seen well or can be reached. */
function tray() {
  const found = document.querySelector(".toasts") ?? document.createElement("div");
  found.className = "toasts";
  found.role = "status";
  found.ariaLive = "polite";
  const dialog = [...document.querySelectorAll("dialog:modal")].at(-1);
  const place = dialog ?? document.body;
  if (found.parentElement !== place) {
    place.append(found);
    dialog?.addEventListener("close", () => document.body.append(found), { once: true });
  }
  return found;
}

/**
 * Shows a message for five seconds.
 *
 * @param {string} text
 * @param {{action?: {label: string, run: () => void}, shownMs?: number}} [options]
 */
export function toast(text, { action, shownMs = SHOWN_MS } = {}) {
  const message = document.createElement("div");
  message.className = "toast";
  const act = () => {
    message.remove();
    action?.run();
  };
  const button = action && html`<button type="button" class="button button-quiet" @click=${act}>${action.label}</button>`;
  render(html`<span>${text}</span>${button ?? nothing}`, message);
  const place = tray();
  place.append(message);
  while (place.childElementCount > MOST_AT_ONCE) place.firstElementChild?.remove();
  setTimeout(() => message.remove(), shownMs);
}

/** @param {string | {code?: string, message?: string}} problem shown as `problems.js` words it */
export function toastProblem(problem) {
  const { title, nextStep } = problemText(problem);
  toast(`${title} ${nextStep}`);
}
