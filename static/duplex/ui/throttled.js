// @ts-check
/**
 * Keeps what is drawn with every message from being drawn too often. Device.
 */

/**
 * Runs a function at most once in a while: at once, and once more at the end.
 *
 * @param {() => void} run
 * @param {number} everyMs
 * @returns {() => void}
 */
export function throttled(run, everyMs) {
  let lastMs = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const now = () => {
    timer = undefined;
    lastMs = performance.now();
    run();
  };
  return () => {
    if (timer !== undefined) return;
    const waitMs = lastMs + everyMs - performance.now();
    if (waitMs <= 0) now();
    else timer = setTimeout(now, waitMs);
  };
}
