/** Small values in the browser's storage. Errors of full or blocked storage are ignored. Pure. */

/** @typedef {Pick<Storage, "getItem" | "setItem" | "removeItem">} SmallStorage */

/** @param {string} key @param {Pick<Storage, "getItem"> | null} [storage] the browser's own if left out @returns {string | null} */
export function remembered(key, storage) {
  try {
    return (storage === undefined ? globalThis.localStorage : storage)?.getItem(key) ?? null;
  } catch {
    return null;
  }
}

/** @param {string} key @param {string | null} value null removes it @param {SmallStorage | null} [storage] as above */
export function remember(key, value, storage) {
  try {
    const kept = storage === undefined ? globalThis.localStorage : storage;
    if (value === null) kept?.removeItem(key);
    else kept?.setItem(key, value);
  } catch {
    // see above
  }
}

/** @param {string} key @param {Pick<Storage, "getItem"> | null} [storage] as above @returns {unknown} null if it is no JSON */
export function rememberedJson(key, storage) {
  try {
    return JSON.parse(remembered(key, storage) ?? "null");
  } catch {
    return null;
  }
}
