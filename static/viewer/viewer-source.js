/** Loads a recording and its audio. Device. */

import { ApiError, getJson } from "../shared/api.js";

/** @import { Meta, Recording } from "../../types/recording.js" */

const AGAIN_MS = 2_000;
const REPLAY_LIMIT_MS = 180_000; // audio that is not available by then never will be
const CONFLICT = 409;

/** @param {string} recordingId @param {string} [what] */
export function pathOf(recordingId, what) {
  const path = `/api/sessions/${encodeURIComponent(recordingId)}`;
  return what ? `${path}/${what}` : path;
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
function wait(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

/**
 * @param {string} recordingId
 * @param {{onMeta: (meta: Meta) => void, onWaiting: (status: string) => void, signal: AbortSignal}} options
 *   `onWaiting`: it is still being written, with its progress
 */
export async function loadRecording(recordingId, { onMeta, onWaiting, signal }) {
  for (;;) {
    /** @type {Meta} */ const meta = await getJson(pathOf(recordingId), { signal });
    onMeta(meta);
    try {
      /** @type {Recording} */ const recording = await getJson(pathOf(recordingId, "recording"), { signal });
      return { meta, recording };
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== CONFLICT) throw error;
      onWaiting(meta.status);
    }
    await wait(AGAIN_MS, signal);
  }
}

/** @param {Meta} meta @param {Recording} recording @param {number} nowMs */
export function mayGetReplay({ ended_at: endedAt, app_type: appType }, recording, nowMs) {
  if (recording.merged_replay || appType === "chat" || appType === "streaming") return false;
  return endedAt === undefined || nowMs - Date.parse(endedAt) < REPLAY_LIMIT_MS;
}

/** @param {string} recordingId @param {AbortSignal} signal @returns {Promise<Recording | null>} null if it is unavailable */
export async function waitForReplay(recordingId, signal) {
  const untilMs = Date.now() + REPLAY_LIMIT_MS;
  while (Date.now() < untilMs) {
    await wait(AGAIN_MS, signal);
    /** @type {Recording | null} */ const recording = await getJson(pathOf(recordingId, "recording"), { signal }).then(
      (answer) => /** @type {Recording} */ (answer),
      () => null,
    );
    if (recording?.merged_replay) return recording;
  }
  return null;
}

const PARTIAL_CONTENT = 206;

/** Reads a byte range of a file. @param {string} url @param {number} first @param {number} last inside @returns {Promise<ArrayBuffer>} */
export async function fetchBytes(url, first, last) {
  const answer = await fetch(url, { headers: { Range: `bytes=${first}-${last}` } });
  if (!answer.ok) throw new Error(`The sound was not given (${answer.status}).`);
  const all = await answer.arrayBuffer();
  return answer.status === PARTIAL_CONTENT ? all : all.slice(first, last + 1);
}
