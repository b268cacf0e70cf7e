// @ts-check
/**
 * How far away the server is: the way there and back, and whether it takes WebSockets. Device.
 */

import { newSessionId, openLiveSocket, socketUrl } from "../shared/live-socket.js";
import { medianOf } from "../shared/median.js";

const TRIES = 10;
const TRY_LIMIT_MS = 5_000;

/**
 * @typedef {Object} RoundTrips
 * @property {number} medianMs
 * @property {number} worstMs
 * @property {number} failed calls that got no answer
 */

/**
 * Calls the server ten times, one after the other.
 *
 * @param {{call?: () => Promise<unknown>, now?: () => number, onStep?: (done: number, total: number) => void}} [options]
 * @returns {Promise<RoundTrips>}
 */
export async function measureRoundTrips({ call = callHealth, now = () => performance.now(), onStep } = {}) {
  /** @type {number[]} */
  const times = [];
  let failed = 0;
  for (let index = 0; index < TRIES; index += 1) {
    const startMs = now();
    try {
      await call();
      times.push(now() - startMs);
    } catch {
      failed += 1;
    }
    onStep?.(index + 1, TRIES);
  }
  return { medianMs: medianOf(times), worstMs: Math.max(...times), failed };
}

async function callHealth() {
  const answer = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(TRY_LIMIT_MS) });
  if (!answer.ok) throw new Error(`/health answered ${answer.status}.`);
  await answer.arrayBuffer();
}

/**
 * Opens the chat's socket and closes it; it sends nothing, so it takes no place in the queue.
 *
 * @param {{url?: string, factory?: import("../shared/live-socket.js").SocketFactory, now?: () => number}} [options]
 * @returns {Promise<number | null>} ms until it was open; null if it did not open
 */
export function measureSocket({ url, factory, now = () => performance.now() } = {}) {
  return new Promise((resolve) => {
    const startMs = now();
    const finish = (/** @type {number | null} */ openedMs) => {
      clearTimeout(timer);
      socket.close();
      resolve(openedMs);
    };
    const timer = setTimeout(() => finish(null), TRY_LIMIT_MS);
    const socket = openLiveSocket(
      url ?? socketUrl("streaming", newSessionId("check")),
      { onOpen: () => finish(now() - startMs), onMessage: () => {}, onClosed: () => finish(null) },
      factory,
    );
  });
}
