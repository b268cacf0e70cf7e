// @ts-check
/**
 * What the measured way to the server means for a conversation. Pure.
 */

import { problemResult } from "./results.js";

/** @typedef {import("./results.js").Result} Result */
/** @typedef {import("../home/readiness.js").Report} Report */

/** Above this an answer is noticeably late: a fifth of a unit. Ours. */
const FAR_MS = 200;
/** Above this single pieces come too late for the player. Ours: twice its first delay. */
const UNEVEN_MS = 400;

/**
 * @param {import("./network-test.js").RoundTrips} trips
 * @param {number | null} socketMs null if WebSockets do not get through
 * @param {Report | null} report
 * @returns {Result}
 */
export function serverResult(trips, socketMs, report) {
  const medianMs = Math.round(trips.medianMs);
  const worstMs = Math.round(trips.worstMs);
  const facts = {
    median_ms: medianMs,
    worst_ms: worstMs,
    failed: trips.failed,
    socket_ms: socketMs === null ? false : Math.round(socketMs),
  };
  if (Number.isNaN(medianMs)) return problemResult("offline");
  if (socketMs === null) {
    return { state: "bad", text: { key: "check.socket_blocked" }, next: { key: "check.socket_blocked_next" }, facts };
  }
  const status = report?.status;
  if (status && status.idle_workers + status.busy_workers === 0) {
    return problemResult(status.loading_workers > 0 ? "worker_loading" : "no_worker", {
      state: status.loading_workers > 0 ? "caution" : "bad",
      facts,
    });
  }
  const params = { median: medianMs, worst: worstMs };
  if (trips.failed > 0)
    return {
      state: "caution",
      text: { key: "check.server_lossy", n: trips.failed, params },
      next: { key: "check.server_far_next" },
      facts,
    };
  if (medianMs > FAR_MS)
    return { state: "caution", text: { key: "check.server_far", params }, next: { key: "check.server_far_next" }, facts };
  if (worstMs > UNEVEN_MS)
    return { state: "caution", text: { key: "check.server_uneven", params }, next: { key: "check.server_far_next" }, facts };
  return { state: "good", text: { key: "check.server_good", params }, facts };
}
