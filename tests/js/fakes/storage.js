/** A browser's storage in memory, that can be full. */

/** @implements {Storage} */
export class FakeStorage {
  isFull = false;
  /** @type {Map<string, string>} */ #kept;

  /** @param {Record<string, string>} [kept] */
  constructor(kept = {}) {
    this.#kept = new Map(Object.entries(kept));
  }

  get length() {
    return this.#kept.size;
  }

  /** @param {number} index */
  key(index) {
    return [...this.#kept.keys()][index] ?? null;
  }

  /** @param {string} key */
  getItem(key) {
    return this.#kept.get(key) ?? null;
  }

  /** @param {string} key @param {string} value */
  setItem(key, value) {
    if (this.isFull) throw new Error("The storage is full.");
    this.#kept.set(key, value);
  }

  /** @param {string} key */
  removeItem(key) {
    this.#kept.delete(key);
  }

  clear() {
    this.#kept.clear();
  }
}
