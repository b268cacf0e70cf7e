// @ts-check
/**
 * The call over the whole screen. Where the browser has no fullscreen for pages, over the whole window.
 */

import { on } from "../../shared/dom.js";

/**
 * What is marked `data-behind` cannot be reached meanwhile.
 *
 * @param {() => void} onChange
 */
export function mountFullView(onChange) {
  const root = document.documentElement;
  let isFull = false;
  const set = (/** @type {boolean} */ next) => {
    if (next === isFull) return;
    isFull = next;
    if (isFull) root.dataset.full = "true";
    else delete root.dataset.full;
    for (const element of document.querySelectorAll("[data-behind]")) element.toggleAttribute("inert", isFull);
    onChange();
  };
  on(document, "fullscreenchange", () => {
    if (!document.fullscreenElement) set(false);
  });
  on(document, "keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && isFull && !document.fullscreenElement && !document.querySelector("dialog[open]")) set(false);
  });
  return {
    get isFull() {
      return isFull;
    },
    async toggle() {
      if (isFull) {
        set(false);
        if (document.fullscreenElement) await document.exitFullscreen();
        return;
      }
      set(true);
      await root.requestFullscreen?.().catch(() => undefined); // refused: it fills the window all the same
    },
  };
}
