// @ts-check
/**
 * Parts of a page that come when they are first needed, or before, when nothing else is to be done. Device.
 */

/** A part of the page did not come; its code names the sentence. */
export class MissingPartError extends Error {
  /** @param {unknown} cause */
  constructor(cause) {
    super("A part of the page could not be loaded.", { cause });
    this.name = "MissingPartError";
    this.code = "missing_part";
  }
}

/**
 * Makes a loader that loads once and makes something of it once; what did not come is asked for again the
 * next time.
 *
 * @template Modules
 * @template [Made=Modules]
 * @param {() => Promise<Modules>} load imports
 * @param {(modules: Modules) => Made} [make] what was imported, if left out
 * @returns {() => Promise<Made>} throws a MissingPartError
 */
export function late(load, make = (modules) => /** @type {Made} */ (/** @type {unknown} */ (modules))) {
  /** @type {Promise<Made> | null} */
  let making = null;
  /** @param {unknown} cause @returns {never} */
  const fail = (cause) => {
    making = null;
    console.info("A part of the page was not loaded.", cause);
    throw new MissingPartError(cause);
  };
  return () => (making ??= load().catch(fail).then(make));
}

/**
 * Loads parts while the page has nothing to do. Whoever needs one that did not come tells of it then.
 *
 * @param {...(() => Promise<unknown>)} parts
 */
export function loadInSpareTime(...parts) {
  const whenIdle = globalThis.requestIdleCallback ?? setTimeout; // Safari has only the latter
  for (const part of parts) whenIdle(() => void part().catch(() => undefined));
}
