// @ts-check
/** A place in the queue, out of a `queued` or `queue_update`. Pure. */

/** @typedef {Object} QueuePlace
 * @property {number} position 1 is next.
 * @property {number} etaS Estimated wait, s.
 * @property {number} queueLength How many wait.
 * @property {string} ticketId
 */

/** The message's fields as any server may send them.
 * @typedef {Object} QueueWords
 * @property {number} [position]
 * @property {number} [eta_seconds]
 * @property {number} [estimated_wait_s] The older name of the same.
 * @property {number} [queue_length]
 * @property {string} [ticket_id]
 */

/** Read a place. @param {QueueWords} message @returns {QueuePlace} */
export function queuePlace(message) {
  return {
    position: Math.max(1, numberOr0(message.position)),
    etaS: Math.max(0, numberOr0(message.eta_seconds ?? message.estimated_wait_s)),
    queueLength: numberOr0(message.queue_length),
    ticketId: typeof message.ticket_id === "string" ? message.ticket_id : "",
  };
}

/** A field as a number; 0 if it is missing or strange. @param {unknown} value @returns {number} */
export function numberOr0(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}
