// @ts-check
/** Parts of a page that come when they are first needed, and drawing that does not come too often. Pure. */

import { CodedError } from "./coded-error.js";

/**
 * Makes a loader that loads once and makes something of it once; what did not load is requested again the
 * next time.
 * @template Modules
 * @template [Made=Modules]
 * @param {() => Promise<Modules>} load imports
 * @param {(modules: Modules) => Made} [make] what was imported, if left out
 * @returns {() => Promise<Made>} throws a CodedError "missing_part"
 */
export function late(load, make = (modules) => /** @type {Made} */ (/** @type {unknown} */ (modules))) {
  /** @type {Promise<Made> | null} */
  let making = null;
  /** @param {unknown} cause @returns {never} */
  const fail = (cause) => {
    making = null;
    console.info("A part of the page was not loaded.", cause);
    throw new CodedError("missing_part", cause);
  };
  return () => (making ??= load().catch(fail).then(make));
}

/**
 * What was loaded under a key, or is loaded now; a failure is forgotten.
 * @template T
 * @param {Map<string, Promise<T>>} known
 * @param {string} key
 * @param {() => Promise<T>} load
 */
export function kept(known, key, load) {
  const loading = known.get(key) ?? load();
  known.set(key, loading);
  loading.catch(() => known.delete(key));
  return loading;
}

/** Whoever needs one that did not load reports it then. @param {...(() => Promise<unknown>)} parts */
export function loadInSpareTime(...parts) {
  const whenIdle = globalThis.requestIdleCallback ?? setTimeout; // Safari has only the latter
  for (const part of parts) whenIdle(() => void part().catch(() => undefined));
}

// Keeps what is drawn with every message from being drawn too often.

/** At once, and once more at the end. @param {() => void} run @param {number} everyMs @returns {() => void} */
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
