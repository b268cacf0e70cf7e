/** Requests of the administration pages, and periodic refresh. Device. */

import { ApiError, getJson, sendJson } from "../shared/api.js";

/** @import { AnswerOf } from "../shared/api.js" */
/** @import { VisibilitySource } from "../shared/page-visibility.js" */

const UNAUTHORIZED = 401;
const FORBIDDEN = 403;

/** @typedef {ReturnType<typeof adminApi>} AdminApi */

/** @param {() => void} onRefused called when the server requires a token */
export function adminApi(onRefused) {
  const watch = (/** @type {unknown} */ error) => {
    if (isRefusal(error)) onRefused();
    throw error;
  };
  return {
    /** @template {string} P @param {P} path @returns {Promise<AnswerOf<P>>} */
    get: (path) => getJson(path).catch(watch),
    /** @template T @param {"POST" | "PUT" | "DELETE"} method @param {string} path @param {unknown} [body] @returns {Promise<T>} */
    send: (method, path, body) => sendJson(method, path, body).catch(watch),
  };
}

/** @param {unknown} error */
export const isRefusal = (error) => error instanceof ApiError && (error.status === UNAUTHORIZED || error.status === FORBIDDEN);

/**
 * Repeats an operation, never concurrently and never while the page is hidden.
 * @param {Object} options
 * @param {() => Promise<void>} options.work handles its own failures
 * @param {() => number} options.pauseMs between the end of one run and the next
 * @param {Pick<VisibilitySource, "isHidden" | "onChange">} options.visibility
 * @returns {() => Promise<void>} runs at once; if it is already running, once more afterwards
 */
export function startRefreshing({ work, pauseMs, visibility }) {
  let isWanted = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let timer;
  /** @type {Promise<void> | null} */ let running = null;

  async function run() {
    do {
      isWanted = false;
      await work();
    } while (isWanted);
    running = null;
    if (!visibility.isHidden()) timer = setTimeout(now, pauseMs());
  }

  function now() {
    clearTimeout(timer);
    isWanted = true;
    running ??= run();
    return running;
  }

  visibility.onChange((isHidden) => {
    if (isHidden) clearTimeout(timer);
    else void now();
  });
  if (!visibility.isHidden()) void now();
  return now;
}
