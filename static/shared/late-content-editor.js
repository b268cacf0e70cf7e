// @ts-check
/**
 * What the model is told before the conversation; the editor comes when somebody wants to change it.
 */

import { late } from "./late.js";

/** @typedef {import("./system-content.js").ContentItem} ContentItem */
/** @typedef {import("./system-content-editor.js").SystemContentEditor} SystemContentEditor */

/**
 * @param {HTMLElement} el
 * @param {import("./system-content-editor.js").EditorOptions} options
 * @returns {Pick<SystemContentEditor, "items" | "setItems"> & {furnish: () => Promise<void>}} `furnish` brings in
 *   the editor, unless it is there
 */
export function mountLateContentEditor(el, options) {
  /** @type {readonly ContentItem[]} */
  let given = [];
  /** @type {SystemContentEditor | null} */
  let editor = null;
  return {
    get items() {
      return editor?.items ?? given;
    },
    setItems(items) {
      given = items;
      editor?.setItems(items);
    },
    furnish: late(() => import("./system-content-editor.js"), ({ mountSystemContentEditor }) => {
      editor = mountSystemContentEditor(el, options);
      editor.setItems(given);
    }),
  };
}
