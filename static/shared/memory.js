// @ts-check
/** Small choices that this browser remembers. Storage may be full or forbidden: they then last as long as the page. Device. */

/** @param {string} key @returns {string | null} */
export function remembered(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** @param {string} key @param {string} value */
export function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // see above
  }
}
