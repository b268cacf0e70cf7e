// @ts-check
/**
 * What the measured echo means for a conversation. Pure.
 */

/** @typedef {import("./results.js").Result} Result */
/** @typedef {{isHeard: boolean, levelDb: number, delayMs: number}} Echo */

/** Softer than this an echo does not set off the model or the speech gate. Ours. */
const SOFT_DB = -30;

/** @param {Echo} echo */
function isSoft({ isHeard, levelDb }) {
  return !isHeard || levelDb < SOFT_DB;
}

/** @param {Echo} echo @returns {{db: number, ms: number}} */
function numbersOf({ levelDb, delayMs }) {
  return { db: Math.round(-levelDb), ms: Math.round(delayMs) };
}

/**
 * @param {Echo} plain as the room gives it back
 * @param {Echo} cancelled with the browser's echo cancellation, as in a call
 * @returns {Result}
 */
export function echoResult(plain, cancelled) {
  const facts = {
    plain_heard: plain.isHeard,
    plain_db: Math.round(plain.levelDb),
    cancelled_heard: cancelled.isHeard,
    cancelled_db: Math.round(cancelled.levelDb),
    round_trip_ms: Math.round(plain.delayMs),
  };
  if (!plain.isHeard && !cancelled.isHeard) {
    return { state: "good", text: { key: "check.echo_none" }, next: { key: "check.echo_none_next" }, facts };
  }
  if (!isSoft(cancelled)) {
    const params = numbersOf(cancelled);
    return { state: "caution", text: { key: "check.echo_loud", params }, next: { key: "check.echo_loud_next" }, facts };
  }
  const params = numbersOf(plain);
  if (isSoft(plain)) return { state: "good", text: { key: "check.echo_fine", params }, facts };
  return { state: "good", text: { key: "check.echo_removed", params }, next: { key: "check.echo_removed_next" }, facts };
}
