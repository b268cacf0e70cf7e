// @ts-check
/** The buttons of the picture, and the call over the whole screen. */

import { on } from "../../shared/dom.js";
import { t } from "../../shared/texts.js";
import { html, icon, mountView, nothing } from "../../shared/lit.js";

/** @import { OmniStore } from "../lib/omni-settings.js" */

/**
 * @typedef {Object} ScreenToolOptions
 * @property {OmniStore} store
 * @property {() => boolean} hasCamera
 * @property {() => void} flip
 * @property {{isFull: boolean, toggle: () => void}} full
 */

/** @param {{bar: HTMLElement, corner: HTMLElement}} parts @param {ScreenToolOptions} options @returns {{update: () => void}} */
export function mountScreenTools({ bar, corner }, { store, hasCamera, flip, full }) {
  bar.setAttribute("role", "group");
  /**
   * @param {string} action
   * @param {() => void} run
   * @param {{sign?: unknown, key?: string, isOn?: boolean, isShown?: boolean, isOff?: boolean}} [look] without `isOn`: no switch
   */
  const tool = (action, run, { sign = icon(action), key = `omni.${action}`, isOn, isShown = true, isOff = false } = {}) =>
    html`<button
      type="button"
      class="button button-icon"
      data-action=${action}
      aria-label=${t(key)}
      title=${t(key)}
      aria-pressed=${isOn === undefined ? nothing : String(isOn)}
      ?hidden=${!isShown}
      ?disabled=${isOff}
      @click=${run}
    >
      ${sign}
    </button>`;
  /** @param {"hd" | "mirror" | "subtitles"} name */
  const turn = (name) => () => store.set(name, !store.get(name));
  const drawBar = mountView(bar, () => {
    const isShown = store.get("source") === "live";
    bar.setAttribute("aria-label", t("omni.tools"));
    return [
      tool("hd", turn("hd"), { sign: "HD", isOn: store.get("hd") }),
      tool("flip", flip, { isShown, isOff: !hasCamera() }),
      tool("mirror", turn("mirror"), { isShown, isOn: store.get("mirror") }),
      tool("subtitles", turn("subtitles"), { isOn: store.get("subtitles") }),
    ];
  });
  const drawCorner = mountView(corner, () =>
    tool("fullscreen", () => full.toggle(), {
      key: full.isFull ? "omni.fullscreen_leave" : "omni.fullscreen",
      isOn: full.isFull,
    }),
  );
  return {
    update() {
      drawBar();
      drawCorner();
    },
  };
}

// The call over the whole screen.

/** What is marked `data-behind` cannot be reached meanwhile. @param {() => void} onChange */
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
