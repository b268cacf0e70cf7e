/**
 * Messages of a full-duplex server. Pure.
 */

/** @import { DuplexPrepared, QueueDone, Queued, Result, ResultPart } from "../../../types/protocol.js" */

const SECRET = "0123456789abcdef0123456789abcdef";

/** @type {QueueDone} */
export const QUEUE_DONE = { type: "queue_done", worker_id: "worker_0", position: 0, session_secret: SECRET };

/** @type {DuplexPrepared} */
export const PREPARED = {
  type: "prepared",
  prompt_length: 40,
  prompt_tokens: 20,
  recording_session_id: "rec_1",
  session_id: "s",
  session_secret: SECRET,
  chunk_ms: 1_000,
  max_kv_tokens: 8_192,
  pause_timeout: 60,
};

/** @param {number} position @param {number} [etaS] @returns {Queued} */
export function queued(position, etaS = 10 * position) {
  const wait = { estimated_wait_s: etaS, eta_seconds: etaS, return_ticket: "" };
  return { type: "queued", ticket_id: "t1", session_secret: SECRET, position, queue_length: position, ...wait };
}

/** @param {Partial<Result>} [given] @returns {Result} */
export function listens(given = {}) {
  return {
    type: "result",
    is_listen: true,
    text: "",
    audio_data: "",
    end_of_turn: false,
    current_time: 1_000,
    cost_llm_ms: 20,
    cost_read_ms: 0,
    cost_tts_prep_ms: null,
    cost_tts_ms: 0,
    cost_token2wav_ms: null,
    cost_all_ms: 60,
    n_tokens: 1,
    n_tts_tokens: 0,
    server_send_ts: 1,
    wall_clock_ms: 70,
    prefill_ms: 30,
    kv_cache_length: 100,
    vision_slices: 0,
    vision_tokens: 0,
    turn_id: 0,
    step: 0,
    barge_in: false,
    ...given,
  };
}

/** @param {string} text @param {Partial<Result>} [given] @returns {Result} */
export function speaks(text, given = {}) {
  return listens({ is_listen: false, text, audio_data: "AAAA", ...given });
}

/** @param {Partial<ResultPart>} [given] @returns {ResultPart} */
export function part(given = {}) {
  return { type: "result_part", audio_data: "AAAA", turn_id: 0, step: 0, elapsed_ms: 40, ...given };
}
