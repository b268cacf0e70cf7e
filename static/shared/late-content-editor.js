// @ts-check
/**
 * The system content of a conversation; its editor is loaded when it is opened.
 */

import { late } from "./late.js";

/** @typedef {import("./system-content.js").ContentItem} ContentItem */
/** @typedef {import("./system-content-editor.js").SystemContentEditor} SystemContentEditor */

/**
 * @param {HTMLElement} el
 * @param {import("./system-content-editor.js").EditorOptions} options
 * @returns {Pick<SystemContentEditor, "items" | "setItems"> & {loadEditors: () => Promise<void>}} `loadEditors` brings in
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
    loadEditors: late(
      () => import("./system-content-editor.js"),
      ({ mountSystemContentEditor }) => {
        editor = mountSystemContentEditor(el, options);
        editor.setItems(given);
      },
    ),
  };
}
