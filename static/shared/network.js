/** Network access of sessions: sockets, requests and the store of recording secrets. Device. */

import { getJson, sendJson } from "./api.js";
import { ownerNotes } from "./memory.js";

/** @import { App } from "./apps.js" */
/** @import { ServerProbe } from "./server-messages.js" */
/** @import { Network } from "./live-socket.js" */

const PROBE_LIMIT_MS = 3_000;

/**
 * @param {"streaming" | "half_duplex" | "duplex"} kind
 * @param {string} appId
 * @param {string} [base] URL of the server; the page's own by default.
 * @returns {Required<Network>}
 */
export const networkOf = (kind, appId, base = globalThis.location?.origin) => ({
  url(sessionId) {
    const url = new URL(`ws/${kind}/${encodeURIComponent(sessionId)}`, base);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    return url.href;
  },
  socketFactory: (url) => new WebSocket(url),
  probe: () => probeServer(appId, base),
  noteOwner: ownerNotes(),
  postChat: (body, signal) => sendJson("POST", new URL("api/chat", base).href, body, { signal }),
});

/**
 * Probes the server over HTTP to explain a lost socket.
 * @param {string} appId The app of the session, as `/api/apps` calls it; "" to leave that out.
 * @param {string} [base] URL of the server; the page's own by default.
 * @returns {Promise<ServerProbe>}
 */
export async function probeServer(appId, base = "") {
  const server = base.replace(/\/$/, "");
  const isOnline = globalThis.navigator?.onLine !== false;
  const health = await getQuietly(`${server}/health`);
  if (health === null) return { isOnline, isReachable: false, isReady: false, isAppEnabled: true };
  const listed = appId ? await getQuietly(`${server}/api/apps`) : null;
  const apps = Array.isArray(listed?.apps) ? listed.apps : null;
  const isAppEnabled = apps === null || apps.some((/** @type {App} */ app) => app.app_id === appId);
  const isReady = health.ready !== false && health.workers_ready !== 0;
  return { isOnline, isReachable: true, isReady, isAppEnabled };
}

/** An unreachable server is a result, not an error. @param {string} url */
const getQuietly = (url) => getJson(url, { signal: AbortSignal.timeout(PROBE_LIMIT_MS), cache: "no-store" }).catch(() => null);
