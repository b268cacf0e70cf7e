// @ts-check
/**
 * Makes and finds elements. Text only ever enters as text.
 */

const SVG = "http://www.w3.org/2000/svg";
const SPRITE = "/static/shared/icons/sprite.svg";

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, unknown>} Props  `class`, `dataset`, `on` (listeners by event), booleans,
 *   anything else an attribute
 */

/**
 * Makes an element.
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Props} [props]
 * @param {...(Child | Child[])} children strings become text nodes
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) setProp(element, name, value);
  element.append(...nodes(children));
  return element;
}

/**
 * @param {HTMLElement} element
 * @param {string} name
 * @param {unknown} value
 */
function setProp(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "dataset") Object.assign(element.dataset, value);
  else if (name === "on") {
    for (const [event, listener] of Object.entries(/** @type {Record<string, EventListener>} */ (value))) {
      element.addEventListener(event, listener);
    }
  } else if (name === "value" && "value" in element) element.value = String(value);
  else element.setAttribute(name, value === true ? "" : String(value));
}

/**
 * @param {(Child | Child[])[]} children
 * @returns {(Node | string)[]}
 */
function nodes(children) {
  return children
    .flat()
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

/**
 * Finds the element with an id and checks its kind.
 *
 * @template {Element} E
 * @param {string} id
 * @param {new () => E} kind
 * @param {Document | DocumentFragment} [root]
 * @returns {E}
 */
export function byId(id, kind, root = document) {
  const found = root.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`The page has no ${kind.name} #${id}.`);
  return found;
}

/**
 * Finds the first match below an element and checks its kind.
 *
 * @template {Element} E
 * @param {ParentNode} root
 * @param {string} selector
 * @param {new () => E} kind
 * @returns {E}
 */
export function find(root, selector, kind) {
  const found = root.querySelector(selector);
  if (!(found instanceof kind)) throw new Error(`There is no ${kind.name} at ${selector}.`);
  return found;
}

/**
 * Listens; the result ends it.
 *
 * @template {Event} E
 * @param {EventTarget} target
 * @param {string} type
 * @param {(event: E) => void} listener
 * @param {AddEventListenerOptions} [options]
 * @returns {() => void}
 */
export function on(target, type, listener, options) {
  const handler = /** @type {EventListener} */ (listener);
  target.addEventListener(type, handler, options);
  return () => target.removeEventListener(type, handler, options);
}

/**
 * Replaces what an element holds.
 *
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/**
 * Sets an element's text if it differs, so that screen readers hear changes only.
 *
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Makes an icon of shared/icons/sprite.svg; decoration only, so name the control itself.
 *
 * @param {string} name
 * @returns {SVGSVGElement}
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("focusable", "false");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `${SPRITE}#${name}`);
  svg.append(use);
  return svg;
}
