/** Page visibility and screen wake lock. Device. */

import { on } from "./async.js";

/** @typedef {ReturnType<typeof pageVisibility>} VisibilitySource */

/** The browser's own page. What adds a listener returns a function that removes it. */
export function pageVisibility() {
  return {
    isHidden: () => document.visibilityState === "hidden",
    onChange(/** @type {(isHidden: boolean) => void} */ listener) {
      return on(document, "visibilitychange", () => listener(document.visibilityState === "hidden"));
    },
    /** The page is being left. @param {() => void} listener */
    onPageHide: (listener) => on(window, "pagehide", listener),
  };
}

// Keeps the screen on during a session where supported; requested again when the tab becomes visible.

/** @typedef {{release: () => Promise<void>}} WakeLock */

/**
 * Requests a wake lock. A refusal is ignored: the screen may then turn off.
 * @param {Pick<Navigator, "wakeLock">} [navigator]
 * @param {EventTarget & {visibilityState: string}} [page] reports when the tab becomes visible
 */
export function keepAwake(navigator = globalThis.navigator, page = globalThis.document) {
  /** @type {WakeLockSentinel | null} */ let sentinel = null;
  let isReleased = false;
  const acquire = async () => {
    if (isReleased || !("wakeLock" in navigator) || page.visibilityState !== "visible") return;
    try {
      const acquired = await navigator.wakeLock.request("screen");
      if (isReleased) await acquired.release();
      else sentinel = acquired;
    } catch {
      sentinel = null; // low battery or policy: the session continues without it
    }
  };
  const end = on(page, "visibilitychange", acquire);
  acquire();
  return {
    async release() {
      isReleased = true;
      end();
      await sentinel?.release();
      sentinel = null;
    },
  };
}
