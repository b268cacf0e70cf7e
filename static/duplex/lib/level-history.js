// @ts-check
/** The last seconds of sound as levels, one per tick, and what went on in each. Pure. */

/** @typedef {"quiet" | "speech" | "answer" | "closed"} LevelKind */
/** @typedef {{share: number, kind: LevelKind}} LevelEntry `share` is 0 to 1 */

/** @returns {LevelEntry} */
function emptyEntry() {
  return { share: 0, kind: "quiet" };
}

/** Keeps a fixed number of them; the oldest goes first. */
export class LevelHistory {
  #entries;
  #next = 0;
  #length = 0;

  /** @param {number} capacity */
  constructor(capacity) {
    this.#entries = Array.from({ length: capacity }, emptyEntry);
  }

  get length() {
    return this.#length;
  }

  get capacity() {
    return this.#entries.length;
  }

  /** @param {number} share @param {LevelKind} kind */
  push(share, kind) {
    const entry = this.#entries[this.#next];
    entry.share = Math.min(1, Math.max(0, share));
    entry.kind = kind;
    this.#next = (this.#next + 1) % this.#entries.length;
    this.#length = Math.min(this.#length + 1, this.#entries.length);
  }

  /** @param {number} age 0 is the newest @returns {LevelEntry} */
  at(age) {
    const count = this.#entries.length;
    return this.#entries[(this.#next - 1 - age + 2 * count) % count];
  }

  clear() {
    this.#length = 0;
  }
}
