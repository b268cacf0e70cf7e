// @ts-check
/** What views use of lit-html, icons, and rendering that keeps the focus. */

import { onLangChange } from "./texts.js";
import { html, nothing, render as renderInto } from "/static/vendor/lit-html/lit-html.js";
import { guard } from "/static/vendor/lit-html/directives/guard.js";
import { live } from "/static/vendor/lit-html/directives/live.js";
import { repeat } from "/static/vendor/lit-html/directives/repeat.js";

export { guard, html, live, nothing, repeat };

/** @typedef {import("lit-html").TemplateResult | typeof nothing} View */

const SPRITE = "/static/shared/icons/sprite.svg";
const FOCUSABLE = "button, a[href], input, select, summary";

/** A picture of shared/icons/sprite.svg; decoration only, so name the control itself. @param {string} name */
export const icon = (name) =>
  html`<svg class="icon" aria-hidden="true" focusable="false"><use href=${`${SPRITE}#${name}`}></use></svg>`;

/**
 * @param {string | View} sign the name of an icon, or what stands in its place
 * @param {string} words what it does, also as its label
 * @param {(event: Event) => void} run
 * @param {{label?: string, action?: string, style?: string, isShown?: boolean, isOff?: boolean, isPressed?: boolean}} [more]
 *   `label` says it in full; without `isPressed` it is no switch
 */
export const iconButton = (
  sign,
  words,
  run,
  { label = words, action, style = "button-quiet", isShown = true, isOff = false, isPressed } = {},
) =>
  html`<button
    type="button"
    class="button button-icon ${style}"
    aria-label=${label}
    title=${words}
    aria-pressed=${isPressed === undefined ? nothing : String(isPressed)}
    data-action=${action ?? nothing}
    ?hidden=${!isShown}
    ?disabled=${isOff}
    @click=${run}
  >
    ${typeof sign === "string" ? icon(sign) : sign}
  </button>`;

/**
 * @param {unknown} words
 * @param {(event: Event) => void} run
 * @param {{sign?: string, label?: string, action?: string, style?: string, isShown?: boolean, isOff?: boolean}} [more] `sign`
 *   stands before the words, `label` says them in full
 */
export const textButton = (words, run, { sign, label, action, style = "", isShown = true, isOff = false } = {}) =>
  html`<button
    type="button"
    class="button ${style}"
    aria-label=${label ?? nothing}
    data-action=${action ?? nothing}
    ?hidden=${!isShown}
    ?disabled=${isOff}
    @click=${run}
  >
    ${sign ? icon(sign) : nothing}${words}
  </button>`;

/**
 * Renders a view in the place of what an element holds: now, with each change of the language, and whenever the result is
 * called.
 * @param {HTMLElement} el
 * @param {() => unknown} view
 */
export function mountView(el, view) {
  const draw = () => render(view(), el);
  const close = onLangChange(draw);
  el.replaceChildren();
  draw();
  return Object.assign(draw, { close });
}

/** @param {Element} control */
const isReachable = (control) => !control.closest("[hidden], :disabled");

/**
 * Renders below an element. Where the control in focus went, the nearest one of its list that is left gets the focus,
 * and else the heading of the section, so that who works with the keyboard continues where they were.
 * @param {unknown} view
 * @param {HTMLElement} el
 */
export function render(view, el) {
  const focused = document.activeElement;
  const isInside = focused instanceof HTMLElement && el.contains(focused);
  const list = isInside ? (focused.closest("tbody, ul, ol") ?? el) : el;
  const controls = isInside ? [...list.querySelectorAll(FOCUSABLE)] : [];
  renderInto(view, el);
  if (!isInside || (document.activeElement === focused && !focused.closest("[hidden]"))) return;
  const at = controls.indexOf(focused);
  const nearest = [focused, ...controls.slice(at + 1), ...controls.slice(0, Math.max(at, 0)).reverse()];
  const target =
    nearest.find((control) => el.contains(control) && isReachable(control)) ?? el.closest("section")?.querySelector("h2");
  if (target instanceof HTMLElement) target.focus({ preventScroll: true });
}
