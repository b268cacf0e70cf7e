/** A WebSocket of JSON messages that opens once, closes once and skips malformed messages. Pure. */

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

/** @typedef {Object} LiveSocket
 * @property {() => boolean} isOpen
 * @property {() => number} bufferedBytes Bytes queued for sending.
 * @property {(message: object) => number} send Returns the number of characters sent; 0 if it is not open.
 * @property {() => void} close No handler is called afterwards.
 */

const OPEN_STATE = 1; // WebSocket.OPEN
const NORMAL_CLOSURE = 1000;
/** Browsers reject some addresses immediately, such as `ws:` from an `https:` page. */
const NEVER_OPENED = Object.freeze({ closeCode: 1006, closeReason: "", wasOpen: false });
const ID_RANDOM_BYTES = 3;

/** @param {string} url @param {LiveSocketHandlers} handlers @param {SocketFactory} factory @returns {LiveSocket} */
export function openLiveSocket(url, handlers, factory) {
  let isDone = false;
  let wasOpen = false;
  /** @type {WebSocket} */ let socket;
  try {
    socket = factory(url);
  } catch (error) {
    queueMicrotask(() => {
      if (!isDone) handlers.onClosed({ ...NEVER_OPENED, closeReason: String(error) });
    });
    return { isOpen: () => false, bufferedBytes: () => 0, send: () => 0, close: () => void (isDone = true) };
  }

  socket.addEventListener("open", () => {
    if (isDone) return;
    wasOpen = true;
    handlers.onOpen?.();
  });
  socket.addEventListener("message", (event) => {
    if (isDone) return;
    const message = parseMessage(event.data);
    if (message) handlers.onMessage(message);
    else handlers.onMalformed?.(String(event.data).slice(0, 200));
  });
  socket.addEventListener("close", (event) => {
    if (isDone) return;
    isDone = true;
    handlers.onClosed({ closeCode: event.code, closeReason: event.reason, wasOpen });
  });
  // An `error` event has no details and is always followed by `close`.
  socket.addEventListener("error", () => {});

  return {
    isOpen: () => !isDone && socket.readyState === OPEN_STATE,
    bufferedBytes: () => socket.bufferedAmount,
    send(message) {
      if (isDone || socket.readyState !== OPEN_STATE) return 0;
      const text = JSON.stringify(message);
      socket.send(text);
      return text.length;
    },
    close() {
      isDone = true;
      socket.close(NORMAL_CLOSURE);
    },
  };
}

/** Parses a message; null if it is malformed. @param {unknown} text @returns {WireMessage | null} */
function parseMessage(text) {
  if (typeof text !== "string") return null;
  try {
    const value = /** @type {unknown} */ (JSON.parse(text));
    if (typeof value !== "object" || value === null || !("type" in value)) return null;
    return typeof value.type === "string" ? /** @type {WireMessage} */ (value) : null;
  } catch {
    return null;
  }
}

/** @param {"streaming" | "half_duplex" | "duplex"} kind @param {string} sessionId @param {string} origin Of the server. */
export function socketUrl(kind, sessionId, origin) {
  const url = new URL(`/ws/${kind}/${encodeURIComponent(sessionId)}`, origin);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
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
