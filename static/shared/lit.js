/** What views use: lit-html, typed access to elements and events, common controls, and rendering that preserves focus. */

import { onLangChange } from "./texts.js";
import { html, nothing, render as renderInto } from "/static/vendor/lit-html/lit-html.js";
import { guard } from "/static/vendor/lit-html/directives/guard.js";
import { live } from "/static/vendor/lit-html/directives/live.js";
import { repeat } from "/static/vendor/lit-html/directives/repeat.js";

/** @template {Element} E @param {string} id @param {new () => E} kind @param {Document | DocumentFragment} [root] @returns {E} */
export function byId(id, kind, root = document) {
  const found = root.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`The page has no ${kind.name} #${id}.`);
  return found;
}

/** @template {Element} E @param {ParentNode} root @param {string} selector @param {new () => E} kind @returns {E} */
export function find(root, selector, kind) {
  const found = root.querySelector(selector);
  if (!(found instanceof kind)) throw new Error(`There is no ${kind.name} at ${selector}.`);
  return found;
}

/**
 * Adds an event listener; the returned function removes it.
 * @template {Event} E
 * @param {EventTarget} target
 * @param {string} type
 * @param {(event: E) => void} listener
 * @param {AddEventListenerOptions} [options]
 */
export function on(target, type, listener, options) {
  const handler = /** @type {EventListener} */ (listener);
  target.addEventListener(type, handler, options);
  return () => target.removeEventListener(type, handler, options);
}

/** Sets the text only if it differs, so that screen readers announce real changes only. @param {Element} element @param {string} text */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export { guard, html, live, nothing, repeat };

/** @typedef {import("lit-html").TemplateResult | typeof nothing} View */

const SPRITE = "/static/shared/icons/sprite.svg";
const FOCUSABLE = "button, a[href], input, select, summary";

/** An icon of shared/icons/sprite.svg. It is hidden from screen readers, so the control needs a label. @param {string} name */
export const icon = (name) =>
  html`<svg class="icon" aria-hidden="true" focusable="false"><use href=${`${SPRITE}#${name}`}></use></svg>`;

/**
 * @param {string | View} sign name of an icon, or a template in its place
 * @param {string} words tooltip and label
 * @param {(event: Event) => void} run
 * @param {{label?: string, action?: string, style?: string, isShown?: boolean, isOff?: boolean, isPressed?: boolean,
 *   isExpanded?: boolean, controls?: string}} [more] `label` overrides the label; with `isPressed` it is a toggle button, with
 *   `isExpanded` it shows and hides the element with the id `controls`
 */
export const iconButton = (
  sign,
  words,
  run,
  { label = words, action, style = "button-quiet", isShown = true, isOff = false, isPressed, isExpanded, controls } = {},
) =>
  html`<button
    type="button"
    class="button button-icon ${style}"
    aria-label=${label}
    title=${words}
    aria-pressed=${isPressed ?? nothing}
    aria-expanded=${isExpanded ?? nothing}
    aria-controls=${controls ?? nothing}
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
 * @param {{sign?: string, label?: string, action?: string, style?: string, isShown?: boolean, isOff?: boolean}} [more] `sign` is
 *   an icon before the words, `label` overrides the accessible name
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
 * A button that opens the file picker.
 * @param {string} words
 * @param {(file: File) => void} take
 * @param {{accept: string, sign: string, action?: string, isIconOnly?: boolean}} look
 */
export function fileButton(words, take, { accept, sign, action, isIconOnly = false }) {
  const ask = (/** @type {Event} */ { currentTarget }) =>
    /** @type {HTMLElement} */ (/** @type {HTMLElement} */ (currentTarget).nextElementSibling).click();
  const onFile = (/** @type {{target: HTMLInputElement}} */ { target }) => {
    const [file] = target.files ?? [];
    target.value = ""; // so that the same file can be chosen again
    if (file) take(file);
  };
  const button = isIconOnly ? iconButton(sign, words, ask, { action, style: "" }) : textButton(words, ask, { sign, action });
  return html`${button}<input type="file" accept=${accept} hidden tabindex="-1" @change=${onFile} />`;
}

/**
 * Replaces an element's content by a view. It is rendered now, on each language change, and whenever the returned function
 * is called.
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

const isReachable = (/** @type {Element} */ control) => !control.closest("[hidden], :disabled");

/**
 * Renders into an element. If the focused control disappears, focus moves to the nearest remaining control of the same
 * list, else to the heading of the section, so that keyboard users keep their place.
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
