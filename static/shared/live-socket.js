/** A socket of JSON messages that opens once, ids of sessions, and when to open another socket. Pure. */

import { CLOSE_CODES } from "./protocol.js";
import { ABNORMAL_CLOSURE } from "./server-messages.js";

/** @import { ServerProbe, SocketEnd } from "./server-messages.js" */

/** A message of the server; what its `type` promises is in protocol.js.
 * @typedef {Record<string, unknown> & {type: string}} WireMessage
 */

/** @typedef {(url: string) => WebSocket} SocketFactory */

/** What a session needs of the network; `networkOf` has the browser's.
 * @typedef {Object} Network
 * @property {(sessionId: string) => string} url URL of a session's socket
 * @property {SocketFactory} socketFactory
 * @property {() => Promise<ServerProbe>} probe state of the server, to explain a lost socket
 * @property {(message: object) => void} [noteOwner] stores the recording secret contained in a message
 * @property {(body: object, signal: AbortSignal) => Promise<unknown>} [postChat] `POST /api/chat`
 */

/** @typedef {Object} LiveSocketHandlers
 * @property {() => void} [onOpen]
 * @property {(message: WireMessage) => void} onMessage
 * @property {(text: string) => void} [onMalformed] A malformed message was skipped.
 * @property {(end: SocketEnd) => void} onClosed Called once, and never after our own `close()`.
 */

/** @typedef {ReturnType<typeof openLiveSocket>} LiveSocket */

const OPEN_STATE = 1; // WebSocket.OPEN
const NORMAL_CLOSURE = 1000;
const ID_RANDOM_BYTES = 3;

/** @param {string} url @param {LiveSocketHandlers} handlers @param {SocketFactory} factory */
export function openLiveSocket(url, handlers, factory) {
  let isDone = false;
  let wasOpen = false;
  const end = (/** @type {number} */ closeCode, /** @type {string} */ closeReason) => {
    if (isDone) return;
    isDone = true;
    handlers.onClosed({ closeCode, closeReason, wasOpen });
  };
  /** @type {WebSocket | undefined} */ let socket;
  try {
    socket = factory(url);
  } catch (error) {
    // Browsers reject some addresses immediately, such as `ws:` from an `https:` page.
    queueMicrotask(() => end(ABNORMAL_CLOSURE, String(error)));
  }

  socket?.addEventListener("open", () => {
    if (isDone) return;
    wasOpen = true;
    handlers.onOpen?.();
  });
  socket?.addEventListener("message", (event) => {
    if (isDone) return;
    const message = parseMessage(event.data);
    if (message) handlers.onMessage(message);
    else handlers.onMalformed?.(String(event.data).slice(0, 200));
  });
  socket?.addEventListener("close", ({ code, reason }) => end(code, reason));
  // An `error` event has no details and is always followed by `close`.
  socket?.addEventListener("error", () => {});

  return {
    isOpen: () => !isDone && socket?.readyState === OPEN_STATE,
    bufferedBytes: () => socket?.bufferedAmount ?? 0, // queued for sending
    /** @param {object} message @returns {number} of characters sent; 0 if it is not open */
    send(message) {
      if (isDone || socket?.readyState !== OPEN_STATE) return 0;
      const text = JSON.stringify(message);
      socket.send(text);
      return text.length;
    },
    /** No handler is called afterwards. */
    close() {
      isDone = true;
      socket?.close(NORMAL_CLOSURE);
    },
  };
}

/** Parses a message; null if it is malformed. @param {unknown} text @returns {WireMessage | null} */
function parseMessage(text) {
  try {
    const value = /** @type {WireMessage | null} */ (JSON.parse(String(text)));
    return typeof value?.type === "string" ? value : null;
  } catch {
    return null;
  }
}

/**
 * Returns a new session id: `<prefix>_<time in base 36>_<random>`.
 * @param {string} prefix Letters, digits and "_"; `adx` and `omni` choose the queue.
 * @param {number} [unixMs]
 */
export function newSessionId(prefix, unixMs = Date.now()) {
  const random = crypto.getRandomValues(new Uint8Array(ID_RANDOM_BYTES));
  const tail = Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${prefix}_${Math.floor(unixMs).toString(36)}_${tail}`;
}

/**
 *  Close codes after which the server keeps the session for resumption. Sources: RFC 6455, section 7.4.1, and its
 * registry: 1006 vanished, 1012 restarted. @type {ReadonlySet<number>}
 */
export const LOST_CODES = new Set([ABNORMAL_CLOSURE, CLOSE_CODES.SHUTDOWN, CLOSE_CODES.INTERNAL, 1012]);
/** Delay before each retry; half of it is random, so that clients do not return at the same time. */
const RETRY_MS = [200, 500, 1_000, 2_000];

/** Delay before the next attempt to reconnect, ms. @param {number} tries Made so far. @returns {number} */
export const retryDelayMs = (tries) => RETRY_MS[Math.min(tries, RETRY_MS.length - 1)] * (1 - Math.random() / 2);
