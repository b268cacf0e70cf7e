// @ts-check
/**
 * Shows a model's answer as Markdown; as plain text until the library is there, or where it is missing.
 */

import { fill } from "../shared/dom.js";
import { loadMarkdown } from "../shared/markdown.js";

/** @typedef {(markdown: string) => (Node | string)[]} Render */

/** @type {Promise<Render | null> | null} */
let loading = null;
/** @type {Render | null} */
let render = null;

/** Loads the library, once. @returns {Promise<boolean>} whether it is there */
export async function prepareMarkdown() {
  loading ??= loadMarkdown().catch(() => null);
  render = await loading;
  return render !== null;
}

/**
 * @param {Element} el
 * @param {string} text
 */
export function showMarkdown(el, text) {
  el.classList.toggle("is-plain", render === null);
  fill(el, render === null ? text : render(text));
}
