// @ts-check
/**
 * A live session's socket from opening to the one reason why it ended. Device.
 *
 * Knows `error`, `timeout` and `stopped`; passes on everything but the first two.
 */

import { endReason, needsProbe, reasonOfClose, reasonOfError, reasonOfTimeout } from "./end-reasons.js";
import { openLiveSocket } from "./live-socket.js";

/** @typedef {import("./end-reasons.js").EndReason} EndReason */
/** @typedef {import("./end-reasons.js").ServerProbe} ServerProbe */
/** @typedef {import("./end-reasons.js").SocketEnd} SocketEnd */
/** @typedef {import("./live-socket.js").WireMessage} WireMessage */
/** @typedef {import("./live-socket.js").SocketFactory} SocketFactory */

/** @typedef {Object} SessionLinkOptions
 * @property {string} url
 * @property {SocketFactory} [socketFactory]
 * @property {() => Promise<ServerProbe>} [probe] Probes the server when the socket vanished.
 * @property {() => void} [onOpen]
 * @property {(message: WireMessage) => void} onMessage
 * @property {() => void} [onMalformed]
 * @property {(reason: EndReason) => void} onEnd Called exactly once, the last call of all.
 */

/** @typedef {Object} SessionLink
 * @property {(message: object) => number} send Returns the characters sent; 0 if it is not open.
 * @property {() => boolean} isOpen
 * @property {() => number} bufferedBytes
 * @property {(reason: EndReason) => void} leave Ask the server to stop; ends with this reason.
 * @property {(reason: EndReason) => void} drop The same without waiting for the server's answer.
 */

/** How long the server has to answer `stop`; it waits up to 5 s for a running unit itself. */
export const STOP_LIMIT_MS = 8_000;

/**
 * Open the socket of a session.
 * @param {SessionLinkOptions} options
 * @returns {SessionLink}
 */
export function openSessionLink(options) {
  /** @type {EndReason | null} */
  let wished = null;
  let isOver = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let stopTimer;

  /** @param {EndReason} reason */
  function finish(reason) {
    if (isOver) return;
    isOver = true;
    clearTimeout(stopTimer);
    socket.close();
    options.onEnd(reason);
  }

  /** @param {WireMessage} message */
  function onMessage(message) {
    if (message.type === "error") return finish(wished ?? reasonOfError(message));
    if (message.type === "timeout") return finish(wished ?? reasonOfTimeout(message));
    options.onMessage(message);
    if (message.type === "stopped") finish(wished ?? endReason("stopped"));
  }

  /** @param {SocketEnd} end */
  async function afterClose(end) {
    if (wished) return finish(wished);
    const probe = needsProbe(end) && options.probe ? await options.probe() : null;
    finish(wished ?? reasonOfClose(end, probe));
  }

  const socket = openLiveSocket(
    options.url,
    {
      onOpen: options.onOpen,
      onMessage,
      onMalformed: options.onMalformed,
      onClosed: (end) => void afterClose(end),
    },
    options.socketFactory,
  );

  return {
    send: (message) => socket.send(message),
    isOpen: socket.isOpen,
    bufferedBytes: socket.bufferedBytes,
    leave(reason) {
      if (isOver || wished) return;
      wished = reason;
      if (socket.send({ type: "stop" }) === 0) return finish(reason);
      stopTimer = setTimeout(() => finish(reason), STOP_LIMIT_MS);
    },
    drop(reason) {
      if (isOver) return;
      if (!wished) socket.send({ type: "stop" });
      finish(wished ?? reason);
    },
  };
}
