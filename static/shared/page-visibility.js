/** Page visibility and screen wake lock. Device. */

/** @typedef {ReturnType<typeof pageVisibility>} VisibilitySource */

/** The browser's own page. What adds a listener returns a function that removes it. */
export function pageVisibility() {
  return {
    isHidden: () => document.visibilityState === "hidden",
    onChange(/** @type {(isHidden: boolean) => void} */ listener) {
      const notify = () => listener(document.visibilityState === "hidden");
      document.addEventListener("visibilitychange", notify);
      return () => document.removeEventListener("visibilitychange", notify);
    },
    /** The page is being left. @param {() => void} listener */
    onPageHide(listener) {
      window.addEventListener("pagehide", listener);
      return () => window.removeEventListener("pagehide", listener);
    },
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
  page.addEventListener("visibilitychange", acquire);
  acquire();
  return {
    async release() {
      isReleased = true;
      page.removeEventListener("visibilitychange", acquire);
      await sentinel?.release();
      sentinel = null;
    },
  };
}
