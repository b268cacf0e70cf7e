/** Lazy loading and throttling. Pure. */

import { CodedError } from "./texts.js";

/**
 * Returns a loader that imports and initialises once; after a failure the next call tries again.
 * @template Modules
 * @template [Made=Modules]
 * @param {() => Promise<Modules>} load imports
 * @param {(modules: Modules) => Made} [make] defaults to the modules themselves
 * @returns {() => Promise<Made>} rejects with a CodedError "missing_part"
 */
export function late(load, make = (modules) => /** @type {Made} */ (/** @type {unknown} */ (modules))) {
  /** @type {Promise<Made> | null} */ let making = null;
  /** @param {unknown} cause @returns {never} */
  const fail = (cause) => {
    making = null;
    console.info("Not loaded:", cause);
    throw new CodedError("missing_part", cause);
  };
  return () => (making ??= load().catch(fail).then(make));
}

/**
 * Loads a value once per key; failures are not cached.
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

/** Loads parts while the browser is idle. A failure is reported when the part is needed. @param {...(() => Promise<unknown>)} parts */
export function loadInSpareTime(...parts) {
  const whenIdle = globalThis.requestIdleCallback ?? setTimeout; // Safari has only the latter
  for (const part of parts) whenIdle(() => void part().catch(() => undefined));
}

// Throttling of redraws that every message triggers.

/** Runs at once, then at most once per interval. @param {() => void} run @param {number} everyMs @returns {() => void} */
export function throttled(run, everyMs) {
  let lastMs = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let timer;
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
