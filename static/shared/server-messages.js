/**
 * The reason why a session ended, as a code for which pages have a text. Pure.
 *
 * The server sends it in an `error` message. Without one it is derived from the close code and a
 * probe of the server. There is one code for each situation that calls for a different action.
 */

import { CLOSE_CODES, ERROR_CODES } from "./protocol.js";

/** @import { ErrorCode, Queued } from "../../types/protocol.js" */

/** What only the client can know, beside the codes of the server.
 * `stopped` the user stopped it · `cancelled` left the queue or cancelled connecting · `page_left` ·
 * `kv_limit` the page's own token limit · `not_ready` no worker · `network_lost` · `server_gone` ·
 * `socket_blocked` HTTP works, WebSockets do not · `refused` · `closed` without a reason.
 * @typedef {"stopped" | "cancelled" | "page_left" | "kv_limit" | "not_ready" | "network_lost"
 *  | "server_gone" | "socket_blocked" | "refused" | "closed"} ClientEndCode
 */

/** @typedef {Exclude<ErrorCode, "no_worker" | "worker_unreachable"> | ClientEndCode} EndCode */

/** Why a session ended. @typedef {ReturnType<typeof endReason>} EndReason */

/** How a socket was closed.
 * @typedef {Object} SocketEnd
 * @property {number} closeCode Close code; 1006 means without a close frame.
 * @property {string} closeReason Reason the other side gave.
 * @property {boolean} wasOpen It had been open before.
 */

/** State of the server, asked over HTTP.
 * @typedef {Object} ServerProbe
 * @property {boolean} isOnline The browser has a network at all.
 * @property {boolean} isReachable The server answered.
 * @property {boolean} isReady A worker is ready.
 * @property {boolean} isAppEnabled The app of this session is switched on.
 */

/** Codes after which a retry would fail the same way. @type {ReadonlySet<string>} */
const NOT_AT_ONCE = new Set(["app_disabled", "origin_refused", "refused", "socket_blocked"]);

/** Codes of ends that the user requested. @type {ReadonlySet<string>} */
const BY_USER = new Set(["stopped", "cancelled", "page_left"]);

/** @type {ReadonlySet<string>} */ const WIRE_CODES = new Set(Object.values(ERROR_CODES));

export const ABNORMAL_CLOSURE = 1006; // the browser's close code for a lost socket. Source: RFC 6455, section 7.4.1.

/** @param {EndCode} code of which pages have a text each @param {string} [message] The server's own words. @param {string} [detail] */
export const endReason = (code, message = "", detail = "") => ({
  code,
  detail, // the kind of `timeout`: "pause", "max_session", "inactivity"; else ""
  message,
  isByUser: BY_USER.has(code), // the user wanted it
  canRestart: !NOT_AT_ONCE.has(code), // the same settings may work when tried again at once
});

/** Maps codes that call for the same action to one name. @param {string} wireCode `code` of an `error` message. @returns {EndCode} */
function endCodeOf(wireCode) {
  if (wireCode === "no_worker") return "not_ready";
  if (wireCode === "worker_unreachable") return "worker_lost";
  return WIRE_CODES.has(wireCode) ? /** @type {EndCode} */ (wireCode) : "internal";
}

/** Text of an `error` or `warning`: older servers use either key. @param {Record<string, unknown>} message @returns {string} */
export function messageText(message) {
  const text = message.error ?? message.message;
  return typeof text === "string" ? text : "";
}

/** Reason of an `error` message. @param {Record<string, unknown>} message @returns {EndReason} */
export function reasonOfError(message) {
  const code = typeof message.code === "string" ? message.code : "internal";
  return endReason(endCodeOf(code), messageText(message));
}

/** @param {SocketEnd} end @param {ServerProbe | null} probe State of the server; null if it was not probed. */
export function reasonOfClose(end, probe) {
  const { closeCode, closeReason } = end;
  if (WIRE_CODES.has(closeReason)) return endReason(endCodeOf(closeReason));
  if (closeCode === CLOSE_CODES.SHUTDOWN) return endReason("shutting_down", closeReason);
  if (closeCode === CLOSE_CODES.TRY_LATER) return endReason("not_ready", closeReason);
  if (closeCode === CLOSE_CODES.TOO_BIG) return endReason("too_big", closeReason);
  if (closeCode === CLOSE_CODES.INTERNAL) return endReason("internal", closeReason);
  if (closeCode === CLOSE_CODES.POLICY) {
    return endReason(/disabled/i.test(closeReason) ? "app_disabled" : "refused", closeReason);
  }
  if (closeCode === CLOSE_CODES.BINARY || closeCode === CLOSE_CODES.BAD_PAYLOAD) {
    return endReason("bad_json", closeReason);
  }
  if (closeCode !== ABNORMAL_CLOSURE) return endReason("closed", closeReason);
  return reasonOfVanished(end.wasOpen, probe);
}

function reasonOfVanished(/** @type {boolean} */ wasOpen, /** @type {ServerProbe | null} */ probe) {
  if (probe === null) return endReason(wasOpen ? "network_lost" : "server_gone");
  if (!probe.isOnline) return endReason("network_lost");
  if (!probe.isReachable) return endReason("server_gone");
  if (wasOpen) return endReason("network_lost");
  if (!probe.isAppEnabled) return endReason("app_disabled");
  return endReason(probe.isReady ? "socket_blocked" : "not_ready");
}

/** Whether the server has to be probed to find the reason. @param {SocketEnd} end @returns {boolean} */
export const needsProbe = (end) => end.closeCode === ABNORMAL_CLOSURE && !WIRE_CODES.has(end.closeReason);

// A place in the queue, out of a `queued` or `queue_update`.

/** @typedef {ReturnType<typeof queuePlace>} QueuePlace */

/** Reads a place. @param {Partial<Omit<Queued, "type">>} message of any server */
export const queuePlace = (message) => ({
  position: Math.max(1, numberOr0(message.position)), // 1 is next
  etaS: Math.max(0, numberOr0(message.eta_seconds ?? message.estimated_wait_s)), // estimated wait, s
  queueLength: numberOr0(message.queue_length), // how many wait
});

/** A field as a number; 0 if it is missing or invalid. @param {unknown} value @returns {number} */
export const numberOr0 = (value) => (typeof value === "number" && Number.isFinite(value) ? value : 0);
