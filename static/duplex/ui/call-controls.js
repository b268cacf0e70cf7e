// @ts-check
/** The buttons of a call. They tell wishes; what is possible follows from the session's state. */

import { t } from "../../shared/i18n.js";
import { html, icon, mountView, nothing } from "../../shared/lit.js";

/**
 * @typedef {Object} CallButton
 * @property {string} action
 * @property {string} sign
 * @property {string} label
 * @property {() => void} run
 * @property {boolean} isShown
 * @property {string} [style]
 * @property {boolean} [isOff] it cannot be pressed now; it keeps its focus, so it is not disabled for the browser
 * @property {boolean} [isPressed]
 * @property {string} [title]
 */

/**
 * @param {HTMLElement} el
 * @param {string} labelKey
 * @param {() => CallButton[]} buttons in their order
 * @returns {() => void} draws them anew
 */
export function mountCallControls(el, labelKey, buttons) {
  el.classList.add("call-controls");
  el.setAttribute("role", "group");
  return mountView(el, () => {
    el.setAttribute("aria-label", t(labelKey));
    return buttons().map(button);
  });
}

/** @param {CallButton} look */
const button = ({ action, sign, label, run, isShown, style = "call-button", isOff = false, isPressed, title }) =>
  html`<button
    type="button"
    class="button ${style}"
    data-action=${action}
    ?hidden=${!isShown}
    aria-disabled=${String(isOff)}
    aria-pressed=${isPressed === undefined ? nothing : String(isPressed)}
    title=${title ?? nothing}
    @click=${() => !isOff && run()}
  >
    ${icon(sign)}<span class="call-label">${label}</span>
  </button>`;

export const START_STYLE = "button-primary button-large call-start";
export const STOP_STYLE = "button-danger call-button";
