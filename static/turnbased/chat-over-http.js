// @ts-check
/**
 * A turn through `POST /api/chat`, for networks that let no WebSocket through. Device.
 */

import { sendJson } from "../shared/api.js";
import { ownerNotes } from "../shared/own-recordings.js";
import { chatRequest } from "./turn-options.js";

/** @typedef {Object} HttpTurn
 * @property {ReadonlyArray<import("../shared/protocol.js").Message>} messages
 * @property {import("./turn-options.js").TurnOptions} options
 */

/**
 * @param {HttpTurn} turn
 * @param {AbortSignal} signal
 * @returns {Promise<unknown>} The answer's body; rejects with an `ApiError`.
 */
export async function chatOverHttp(turn, signal) {
  const body = chatRequest(turn.messages, turn.options);
  /** @type {object} */
  const reply = await sendJson("POST", "/api/chat", body, { signal });
  ownerNotes(globalThis.localStorage)(reply);
  return reply;
}
