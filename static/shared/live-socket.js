/**
 * Sockets of JSON messages: one that opens once, and those of a live session, from opening to the reason of its end. Pure.
 *
 * A session's link handles `error`, `timeout`, `stopped` and resumption over another socket, and passes on all other messages.
 */

import { endReason, messageText, needsProbe, reasonOfClose, reasonOfError } from "./server-messages.js";
import { CLOSE_CODES } from "./protocol.js";

/** @import { EndReason, ServerProbe, SocketEnd } from "./server-messages.js" */

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
/** Browsers reject some addresses immediately, such as `ws:` from an `https:` page. */
const NEVER_OPENED = Object.freeze({ closeCode: 1006, closeReason: "", wasOpen: false });
const ID_RANDOM_BYTES = 3;

/** @param {string} url @param {LiveSocketHandlers} handlers @param {SocketFactory} factory */
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
    return {
      isOpen: () => false,
      bufferedBytes: () => 0,
      send: (/** @type {object} */ _message) => 0,
      close: () => void (isDone = true),
    };
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
    bufferedBytes: () => socket.bufferedAmount, // queued for sending
    /** @param {object} message @returns {number} of characters sent; 0 if it is not open */
    send(message) {
      if (isDone || socket.readyState !== OPEN_STATE) return 0;
      const text = JSON.stringify(message);
      socket.send(text);
      return text.length;
    },
    /** No handler is called afterwards. */
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

/** @typedef {Object} LinkHandlers
 * @property {(message: WireMessage) => void} onMessage
 * @property {() => void} [onMalformed]
 * @property {(isThere: boolean) => void} [onConnection] The socket was lost, or another one resumed the session.
 * @property {(reason: EndReason) => void} onEnd Called exactly once, as the last callback.
 */

/** @typedef {ReturnType<typeof openSessionLink>} SessionLink */

/** How long the server has to answer `stop`; it waits up to 5 s for a running unit itself. */
export const STOP_LIMIT_MS = 8_000;

/**
 *  Close codes after which the server keeps the session for resumption. Sources: RFC 6455, section 7.4.1, and its
 * registry: 1006 vanished, 1012 restarted. @type {ReadonlySet<number>}
 */
export const LOST_CODES = new Set([1006, CLOSE_CODES.SHUTDOWN, CLOSE_CODES.INTERNAL, 1012]);
/** Delay before each retry; half of it is random, so that clients do not return at the same time. */
const RETRY_MS = [200, 500, 1_000, 2_000];
const MS_PER_S = 1_000;

/** Delay before the next attempt to reconnect, ms. @param {number} tries Made so far. @returns {number} */
export const retryDelayMs = (tries) => RETRY_MS[Math.min(tries, RETRY_MS.length - 1)] * (1 - Math.random() / 2);

/** Opens the socket of a session. @param {{url: string} & Omit<Network, "url" | "postChat" | "probe"> & Partial<Pick<Network, "probe">> & LinkHandlers} options */
export function openSessionLink(options) {
  /** @type {EndReason | null} */ let wished = null;
  let isOver = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let stopTimer;
  /** @type {{token: string, graceS: number} | null} How to come back. */ let offer = null;
  /** @type {EndReason | null} */ let lastError = null;
  let lastSeq = 0;
  /** Query of the next socket, which returns to the place in the queue. @type {Record<string, string>} */ let place = {};
  /** @type {number | null} */ let lostAtMs = null;
  let tries = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let retryTimer;

  function connect(/** @type {Record<string, string>} */ query) {
    const url = new URL(options.url);
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
    const { onMalformed, socketFactory } = options;
    return openLiveSocket(url.href, { onMessage, onMalformed, onClosed: (end) => void afterClose(end) }, socketFactory);
  }

  function finish(/** @type {EndReason} */ reason) {
    if (isOver) return;
    isOver = true;
    clearTimeout(stopTimer);
    clearTimeout(retryTimer);
    socket.close();
    options.onEnd(reason);
  }

  function onMessage(/** @type {WireMessage} */ message) {
    options.noteOwner?.(message);
    if (message.type === "error" && offer && message.code === "shutting_down") {
      lastError = reasonOfError(message); // if it does not start again
      return;
    }
    if (message.type === "error") return finish(wished ?? reasonOfError(message));
    if (message.type === "timeout") {
      const kind = typeof message.reason === "string" ? message.reason : "inactivity";
      return finish(wished ?? endReason("timeout", messageText(message), kind));
    }
    if (typeof message.seq === "number") lastSeq = message.seq;
    if (message.return_ticket) place = { ticket: String(message.return_ticket) };
    if (message.type === "session_resumable") {
      offer = { token: String(message.resume_token), graceS: Number(message.grace_s) };
      return;
    }
    if (lostAtMs !== null) {
      lostAtMs = null;
      lastError = null;
      tries = 0;
      options.onConnection?.(true);
    }
    if (message.type !== "session_resumed") options.onMessage(message);
    else if (message.last_seq === 0) options.onMessage({ type: "queue_done" }); // not prepared yet
    if (message.type === "stopped") finish(wished ?? endReason("stopped"));
  }

  async function afterClose(/** @type {SocketEnd} */ end) {
    if (wished) return finish(wished);
    if (offer && LOST_CODES.has(end.closeCode) && comesBack(offer)) return;
    if (lastError) return finish(lastError);
    const probe = needsProbe(end) && options.probe ? await options.probe() : null;
    finish(wished ?? reasonOfClose(end, probe));
  }

  /** The first attempt is made regardless of the time limit. @param {{token: string, graceS: number}} how @returns {boolean} */
  function comesBack({ token, graceS }) {
    if (isOver) return false;
    if (lostAtMs === null) {
      lostAtMs = Date.now();
      options.onConnection?.(false);
    } else if (Date.now() - lostAtMs > graceS * MS_PER_S) return false;
    retryTimer = setTimeout(() => {
      socket = connect({ resume_token: token, last_seq: String(lastSeq), ...place });
    }, retryDelayMs(tries));
    tries += 1;
    return true;
  }

  let socket = connect({ resumable: "1" });

  return {
    send: (/** @type {object} */ message) => socket.send(message),
    isOpen: () => lostAtMs === null && socket.isOpen(),
    bufferedBytes: () => socket.bufferedBytes(),
    /** Asks the server to stop; ends with this reason. @param {EndReason} reason */
    leave(reason) {
      if (isOver || wished) return;
      wished = reason;
      if (socket.send({ type: "stop" }) === 0) return finish(reason);
      stopTimer = setTimeout(() => finish(reason), STOP_LIMIT_MS);
    },
    /** The same without waiting for the server's answer. @param {EndReason} reason */
    drop(reason) {
      if (isOver) return;
      if (!wished) socket.send({ type: "stop" });
      finish(wished ?? reason);
    },
  };
}
