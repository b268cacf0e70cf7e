// @ts-check
/**
 * How much of a large question is on its way. Device.
 */

const INTERVAL_MS = 150;
const WORTH_BYTES = 256 * 1024; // less is sent before anybody could look

/**
 * Watches a socket's buffer from now on until it is empty.
 *
 * @param {() => Pick<WebSocket, "bufferedAmount"> | null} socket
 * @param {(done: {sentBytes: number, totalBytes: number} | null) => void} listener null: nothing is on its way
 * @returns {{begin: () => void, end: () => void}}
 */
export function watchUpload(socket, listener) {
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let timer;
  let totalBytes = 0;
  const end = () => {
    if (timer === undefined) return;
    clearInterval(timer);
    timer = undefined;
    listener(null);
  };
  const look = () => {
    const waiting = socket()?.bufferedAmount ?? 0;
    totalBytes = Math.max(totalBytes, waiting);
    if (totalBytes < WORTH_BYTES) return;
    if (waiting > 0) listener({ sentBytes: totalBytes - waiting, totalBytes });
    else end();
  };
  return {
    begin() {
      end();
      totalBytes = 0;
      timer = setInterval(look, INTERVAL_MS);
      look();
    },
    end,
  };
}
