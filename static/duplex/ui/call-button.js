// @ts-check
/**
 * What the buttons of every call have in common: a sign beside a word, and the focus they pass on.
 */

import { fill, h, icon, setText } from "../../shared/dom.js";

/**
 * @param {HTMLButtonElement} button
 * @param {boolean} isShown
 * @param {string} iconName
 * @param {string} label
 */
export function showCallButton(button, isShown, iconName, label) {
  button.hidden = !isShown;
  if (button.dataset.icon !== iconName) {
    button.dataset.icon = iconName;
    fill(button, icon(iconName), h("span", { class: "call-label" }));
  }
  const words = button.querySelector(".call-label");
  if (words) setText(words, label);
}

/**
 * A button that vanished passes its focus on, so that the keyboard does not fall off the page.
 *
 * @param {HTMLElement} el
 * @param {Element | null} focused
 */
export function keepFocus(el, focused) {
  if (!(focused instanceof HTMLButtonElement) || !el.contains(focused)) return;
  if (!focused.hidden && !focused.disabled) return;
  [...el.querySelectorAll("button")].find((button) => !button.hidden && !button.disabled)?.focus();
}
