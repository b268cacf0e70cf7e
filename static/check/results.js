// @ts-check
/**
 * What each check found, and what follows from all of them. Pure.
 */

/**
 * @typedef {import("../home/readiness.js").Phrase} Phrase
 * @typedef {typeof CHECKS[number]} CheckId
 * @typedef {"todo" | "running" | "good" | "caution" | "bad"} ResultState
 *
 * @typedef {Object} Result
 * @property {ResultState} state
 * @property {Phrase} [text] what was found
 * @property {Phrase} [next] what to do about it
 * @property {string} [detail] in the browser's own words
 * @property {Record<string, string | number | boolean>} [facts] for the report, by name
 *
 * @typedef {{kind: "todo" | "good" | "caution" | "bad", done: number, total: number, first: CheckId | null}} Verdict
 *   `first`: the check to look at next
 */

export const CHECKS = /** @type {const} */ (["browser", "server", "microphone", "speaker", "echo", "camera"]);
/** A conversation needs these; the others make it better. @type {readonly CheckId[]} */
export const NEEDED = ["browser", "server", "microphone", "speaker"];

/** @type {Readonly<Result>} */
const NOT_DONE = Object.freeze({ state: "todo" });

/** Keeps the results. Event: `change`. */
export class Results extends EventTarget {
  /** @type {Map<CheckId, Result>} */ #found = new Map();

  /** @param {CheckId} id @returns {Result} */
  get(id) {
    return this.#found.get(id) ?? NOT_DONE;
  }

  /** @param {CheckId} id @param {Result} result */
  set(id, result) {
    this.#found.set(id, result);
    this.dispatchEvent(new Event("change"));
  }
}

/**
 * The result of a way to fail that problem.* has words for.
 *
 * @param {string} code
 * @param {{state?: "caution" | "bad", detail?: string, facts?: Result["facts"]}} [options]
 * @returns {Result}
 */
export function problemResult(code, { state = "bad", ...rest } = {}) {
  return { state, text: { key: `problem.${code}.title` }, next: { key: `problem.${code}.next` }, ...rest };
}

/**
 * @param {{get: (id: CheckId) => Result}} results
 * @returns {Verdict}
 */
export function verdictOf(results) {
  const stateOf = (/** @type {CheckId} */ id) => results.get(id).state;
  const isOver = (/** @type {CheckId} */ id) => !["todo", "running"].includes(stateOf(id));
  const done = NEEDED.filter(isOver).length;
  const total = NEEDED.length;
  const broken = NEEDED.find((id) => stateOf(id) === "bad");
  if (broken) return { kind: "bad", done, total, first: broken };
  if (done < total) return { kind: "todo", done, total, first: NEEDED.find((id) => !isOver(id)) ?? null };
  const limited = CHECKS.find((id) => ["caution", "bad"].includes(stateOf(id)));
  return { kind: limited ? "caution" : "good", done, total, first: limited ?? null };
}
