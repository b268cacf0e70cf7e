// @ts-check
/** What views use of lit-html, an icon, and rendering that keeps the focus. */

import { html, nothing, render as renderInto } from "/static/vendor/lit-html/lit-html.js";
import { live } from "/static/vendor/lit-html/directives/live.js";
import { repeat } from "/static/vendor/lit-html/directives/repeat.js";

export { html, live, nothing, repeat };

/** @typedef {import("lit-html").TemplateResult | typeof nothing} View */

const SPRITE = "/static/shared/icons/sprite.svg";
const FOCUSABLE = "button, a[href], input, select, summary";

/**
 * A picture of shared/icons/sprite.svg; decoration only, so name the control itself.
 *
 * @param {string} name
 */
export const icon = (name) =>
  html`<svg class="icon" aria-hidden="true" focusable="false"><use href=${`${SPRITE}#${name}`}></use></svg>`;

/**
 * Renders below an element. Where the control in focus went, the nearest one of its list that is left gets the focus,
 * and else the heading of the section, so that who works with the keyboard goes on where they were.
 *
 * @param {unknown} view
 * @param {HTMLElement} el
 */
export function render(view, el) {
  const focused = document.activeElement;
  const isInside = focused instanceof HTMLElement && el.contains(focused);
  const list = isInside ? (focused.closest("tbody, ul, ol") ?? el) : el;
  const controls = isInside ? [...list.querySelectorAll(FOCUSABLE)] : [];
  renderInto(view, el);
  if (!isInside || document.activeElement === focused) return;
  const at = controls.indexOf(focused);
  const nearest = [focused, ...controls.slice(at + 1), ...controls.slice(0, Math.max(at, 0)).reverse()];
  const target = nearest.find((control) => el.contains(control)) ?? el.closest("section")?.querySelector("h2");
  if (target instanceof HTMLElement) target.focus({ preventScroll: true });
}
