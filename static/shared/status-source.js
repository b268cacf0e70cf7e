// @ts-check
/**
 * Asks the server how it is, every few seconds while the page is seen.
 */

import { getJson } from "./api.js";

const INTERVAL_MS = 10_000;

/**
 * @typedef {Object} ServiceModel
 * @property {string} name
 * @property {"full" | "tiny_random" | "nano" | "cascade" | "fake" | "unknown"} kind
 * @property {boolean} is_demonstration its answers are not to be relied on
 * @property {number} [parameters]
 * @property {string[]} [try_saying]
 *
 * @typedef {Object} ServiceFetch
 * @property {"fetching" | "complete" | "failed"} state
 * @property {number} done_bytes
 * @property {number} total_bytes
 * @property {string | null} problem why it failed; administrators are told
 *
 * @typedef {Object} ServiceStatus the answer of GET /status, as far as pages need it
 * @property {number} total_workers
 * @property {number} idle_workers
 * @property {number} busy_workers
 * @property {number} free_slots sessions that could begin now
 * @property {number} loading_workers
 * @property {number} error_workers
 * @property {number} offline_workers
 * @property {number} queue_length
 * @property {number} max_queue_size
 * @property {boolean} is_intake_paused
 * @property {ServiceModel | null} [model]
 * @property {ServiceFetch | null} [fetch] of the model that is to take over
 *
 * @typedef {{status: ServiceStatus | null, isReached: boolean}} StatusReport
 */

/**
 * @param {(report: StatusReport) => void} listener called with every answer, and on none
 * @param {{intervalMs?: number}} [options]
 * @returns {{refresh: () => Promise<void>, close: () => void}}
 */
export function watchStatus(listener, { intervalMs = INTERVAL_MS } = {}) {
  const refresh = async () => {
    /** @type {StatusReport} */
    const report = await getJson("/status").then(
      (status) => ({ status: /** @type {ServiceStatus} */ (status), isReached: true }),
      () => ({ status: null, isReached: false }),
    );
    listener(report);
  };
  const timer = setInterval(() => {
    if (document.visibilityState === "visible") void refresh();
  }, intervalMs);
  const seen = () => {
    if (document.visibilityState === "visible") void refresh();
  };
  document.addEventListener("visibilitychange", seen);
  void refresh();
  return {
    refresh,
    close() {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
