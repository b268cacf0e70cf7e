// @ts-check
/**
 * Whether the page is seen, as a source that sessions are given. Device.
 */

/** @typedef {Object} VisibilitySource
 * @property {() => boolean} isHidden
 * @property {(listener: (isHidden: boolean) => void) => () => void} onChange Returns how to end it.
 * @property {(listener: () => void) => () => void} onPageHide The page is being left.
 */

/**
 * The browser's own page.
 * @returns {VisibilitySource}
 */
export function pageVisibility() {
  return {
    isHidden: () => document.visibilityState === "hidden",
    onChange(listener) {
      const notify = () => listener(document.visibilityState === "hidden");
      document.addEventListener("visibilitychange", notify);
      return () => document.removeEventListener("visibilitychange", notify);
    },
    onPageHide(listener) {
      window.addEventListener("pagehide", listener);
      return () => window.removeEventListener("pagehide", listener);
    },
  };
}

/**
 * A page that is always seen: for tests and programs without a window.
 * @returns {VisibilitySource}
 */
export function alwaysVisible() {
  return { isHidden: () => false, onChange: () => () => {}, onPageHide: () => () => {} };
}
