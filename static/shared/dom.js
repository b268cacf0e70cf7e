/** Typed access to elements and events. */

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
