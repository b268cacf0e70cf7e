// @ts-check
/**
 * Files dropped anywhere on the page; a cover says so while they hover.
 */

import { fill, h, icon, on } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";

/**
 * @param {HTMLElement} el the cover
 * @param {(files: FileList) => void} take
 */
export function mountDropZone(el, take) {
  let depth = 0; // each element under the pointer enters and leaves by itself
  /** @param {DragEvent} event */
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files") ?? false;
  /** @param {number} next */
  const become = (next) => {
    depth = Math.max(0, next);
    el.hidden = depth === 0;
  };
  const draw = () => fill(el, h("div", { class: "drop-words" }, icon("upload"), h("p", {}, t("chat.drop"))));
  on(document, "dragenter", (/** @type {DragEvent} */ event) => {
    if (hasFiles(event) && !document.querySelector("dialog[open]")) become(depth + 1);
  });
  on(document, "dragleave", (/** @type {DragEvent} */ event) => {
    if (hasFiles(event)) become(depth - 1);
  });
  on(document, "dragover", (/** @type {DragEvent} */ event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  // A voice box inside the page takes its own files and says so by ending the event.
  on(document, "drop", (/** @type {DragEvent} */ event) => {
    become(0);
    if (event.defaultPrevented || !event.dataTransfer?.files.length) return;
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) take(event.dataTransfer.files);
  });
  on(document, "drop", () => become(0), { capture: true });
  onLangChange(draw);
  draw();
  el.hidden = true;
}
