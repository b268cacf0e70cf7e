/** Typed events, lazy loading, splitting of work, throttling, rates, quantiles and medians. Pure. */

import { CodedError, MS_PER_S } from "./texts.js";

/**
 * Adds an event listener; the returned function removes it.
 * @template {Event} E
 * @param {EventTarget} target
 * @param {string} type
 * @param {(event: E) => void} listener
 * @param {AddEventListenerOptions} [options]
 */
export function on(target, type, listener, options) {
  const handler = /** @type {EventListener} */ (listener);
  target.addEventListener(type, handler, options);
  return () => target.removeEventListener(type, handler, options);
}

/** @template {Record<string, any>} Events Detail of each event by its type. `any`: each subclass says. */
export class Emitter extends EventTarget {
  /** @template {keyof Events & string} Type @param {Type} type @param {(detail: Events[Type]) => void} listener */
  on(type, listener) {
    return on(this, type, (/** @type {CustomEvent<Events[Type]>} */ { detail }) => listener(detail));
  }

  /** @template {keyof Events & string} Type @param {Type} type @param {Events[Type]} detail */
  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

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

const FIRST_SCREEN_MS = 500; // from when the page is usable until its largest parts are painted, on a slow telephone

/** Loads parts once the first screen is painted and the browser is idle. A failure is reported when the part is needed. @param {...(() => Promise<unknown>)} parts */
export function loadInSpareTime(...parts) {
  const whenIdle = globalThis.requestIdleCallback ?? setTimeout; // Safari has only the latter
  setTimeout(() => parts.forEach((part) => whenIdle(() => void part().catch(() => undefined))), FIRST_SCREEN_MS);
}

/** Ends the current task, so that the browser can answer the visitor before the next part is mounted. */
export const nextTask = () => new Promise((done) => setTimeout(done));

/** Runs at once, then at most once per interval, for redraws that every message triggers. @param {() => void} run @param {number} everyMs @returns {() => void} */
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

/** @param {readonly number[]} values @param {number} share 0 to 1 @returns {number | null} null without values */
export function quantileOf(values, share) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? null;
}

/** @param {readonly number[]} values @returns {number} NaN without values */
export function medianOf(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const KEPT = 12; // events that a rate is measured over

/** @returns {(nowMs: number) => {rate: number, count: number}} counts an event; `rate` per second, 0 until there are two */
export function createRateCounter() {
  /** @type {number[]} */ let times = [];
  let total = 0;
  return (nowMs) => {
    times = [...times.slice(1 - KEPT), nowMs];
    total += 1;
    const spanMs = nowMs - times[0];
    return { rate: spanMs > 0 ? ((times.length - 1) * MS_PER_S) / spanMs : 0, count: total };
  };
}
