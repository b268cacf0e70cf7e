// @ts-check
/**
 * Tells the server what the listener heard: each gap soon, everything once at the end. Pure.
 *
 * At most two messages a second and 16 KB each; what comes faster is put into the next one.
 */

/** @import { SessionState } from "./duplex-types.js" */

/** A gap in the playback.
 * @typedef {Object} Gap
 * @property {number} gapIndex
 * @property {number} gapMs
 * @property {number} totalShiftMs
 * @property {number} [chunkIndex]
 * @property {number} [turn]
 */

const PERIOD_MS = 500;
const LIMIT_CHARS = 15_000; // of 16 KiB; all of it is ASCII
const GAPS_PER_MESSAGE = 20;

/** @typedef {{noteGap: (gap: Gap) => void, sendSummary: (state: SessionState) => void, close: () => void}} Diagnostics */

/** @param {{send: (message: object) => number, nowMs: () => number}} options @returns {Diagnostics} */
export function createDiagnostics({ send, nowMs }) {
  /** @type {Gap[]} */
  let waiting = [];
  let leftOut = 0;
  let lastMs = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  function flush() {
    timer = undefined;
    if (waiting.length === 0) return;
    const metrics = { event: "gap", gaps: waiting.map(gapOnWire), gaps_left_out: leftOut };
    waiting = [];
    leftOut = 0;
    lastMs = nowMs();
    send({ type: "client_diagnostic", metrics });
  }

  return {
    noteGap(gap) {
      if (waiting.length < GAPS_PER_MESSAGE) waiting.push(gap);
      else leftOut += 1;
      if (timer !== undefined) return;
      const delayMs = Math.max(0, lastMs + PERIOD_MS - nowMs());
      if (delayMs === 0) flush();
      else timer = setTimeout(flush, delayMs);
    },
    sendSummary(state) {
      clearTimeout(timer);
      timer = undefined;
      const metrics = sessionSummary(state, nowMs());
      const text = JSON.stringify(metrics);
      if (text.length <= LIMIT_CHARS) send({ type: "client_diagnostic", metrics });
    },
    close() {
      clearTimeout(timer);
      timer = undefined;
      waiting = [];
    },
  };
}

/** @param {Gap} gap */
function gapOnWire(gap) {
  return {
    gap_idx: gap.gapIndex,
    gap_ms: Math.round(gap.gapMs),
    total_shift_ms: Math.round(gap.totalShiftMs),
    chunk_idx: gap.chunkIndex ?? null,
    turn: gap.turn ?? null,
  };
}

/** The session in a few numbers. @param {SessionState} state @param {number} nowMs @returns {Record<string, unknown>} */
function sessionSummary(state, nowMs) {
  const walls = state.units.map((unit) => unit.wallClockMs).sort((a, b) => a - b);
  return {
    event: "summary",
    running_ms: Math.round(nowMs - (state.preparedAtMs ?? nowMs)),
    chunks_sent: state.chunksSent,
    chunks_received: state.chunksReceived,
    chunks_dropped_upload: state.chunksUploadDropped,
    chunks_dropped_server: state.chunksServerDropped,
    frames_sent: state.framesSent,
    turns: state.turnCount,
    kv_tokens: state.kvTokens,
    ttfs_ms: rounded(state.ttfsMs),
    drift_ms: rounded(state.driftMs),
    gaps: state.gapCount,
    total_shift_ms: Math.round(state.totalShiftMs),
    wall_clock_p50_ms: rounded(quantile(walls, 0.5)),
    wall_clock_p99_ms: rounded(quantile(walls, 0.99)),
  };
}

/** @param {number | null} value */
function rounded(value) {
  return value === null ? null : Math.round(value);
}

/** @param {number[]} sorted @param {number} share @returns {number | null} */
function quantile(sorted, share) {
  if (sorted.length === 0) return null;
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? null;
}
