/** Requests of the administration pages, and periodic refresh. Device. */

import { ApiError, getJson, sendJson } from "../shared/api.js";

/** @import { AnswerOf } from "../shared/api.js" */
/** @import { VisibilitySource } from "../shared/page-visibility.js" */

const UNAUTHORIZED = 401;
const FORBIDDEN = 403;

/**
 * @typedef {Object} AdminApi
 * @property {<P extends string>(path: P) => Promise<AnswerOf<P>>} get
 * @property {<T>(method: "POST" | "PUT" | "DELETE", path: string, body?: unknown) => Promise<T>} send
 */

/** @param {() => void} onRefused called when the server requires a token @returns {AdminApi} */
export function adminApi(onRefused) {
  /** @template T @param {Promise<T>} answer @returns {Promise<T>} */
  const watched = async (answer) => {
    try {
      return await answer;
    } catch (error) {
      if (isRefusal(error)) onRefused();
      throw error;
    }
  };
  return { get: (path) => watched(getJson(path)), send: (method, path, body) => watched(sendJson(method, path, body)) };
}

/** @param {unknown} error */
export const isRefusal = (error) => error instanceof ApiError && (error.status === UNAUTHORIZED || error.status === FORBIDDEN);

// Repeats an operation, never concurrently and never while the page is hidden.

/**
 * @typedef {Object} RefresherOptions
 * @property {() => Promise<void>} work handles its own failures
 * @property {() => number} pauseMs between the end of one run and the next
 * @property {VisibilitySource} visibility
 * @property {(run: () => void, afterMs: number) => unknown} [setTimer]
 * @property {(timer: unknown) => void} [clearTimer]
 *
 * @typedef {Object} Refresher
 * @property {() => Promise<void>} now runs at once; if it is already running, once more afterwards
 * @property {() => void} close
 */

/** Starts immediately if the page is visible. @param {RefresherOptions} options @returns {Refresher} */
export function startRefreshing({
  work,
  pauseMs,
  visibility,
  setTimer = setTimeout,
  clearTimer = (timer) => clearTimeout(/** @type {number} */ (timer)),
}) {
  let isClosed = false;
  let isWanted = false;
  /** @type {unknown} */ let timer = null;
  /** @type {Promise<void> | null} */ let running = null;

  async function run() {
    do {
      isWanted = false;
      await work();
    } while (isWanted && !isClosed);
    running = null;
    if (!isClosed && !visibility.isHidden()) timer = setTimer(() => void now(), pauseMs());
  }

  function now() {
    clearTimer(timer);
    isWanted = true;
    running ??= run();
    return running;
  }

  const endVisibility = visibility.onChange((isHidden) => {
    if (isHidden) clearTimer(timer);
    else if (!isClosed) void now();
  });
  if (!visibility.isHidden()) void now();
  return {
    now,
    close() {
      isClosed = true;
      clearTimer(timer);
      endVisibility();
    },
  };
}
