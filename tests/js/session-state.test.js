import assert from "node:assert/strict";
import test from "node:test";

import { endReason } from "../../static/shared/server-messages.js";
import { initialState, isMuted, runningMs } from "../../static/duplex/lib/session-state.js";
import { reduce } from "../../static/duplex/lib/full-duplex.js";
import { PREPARED, QUEUE_DONE, listens, queued, speaks } from "./fakes/duplex-messages.js";

/** @import { SessionEvent } from "../../types/duplex.js" */
/** @import { SessionState } from "../../static/duplex/lib/session-state.js" */

/**
 * @param {any} message any: also what no server should send
 * @param {number} [nowMs]
 * @param {number} [unixMs]
 * @returns {SessionEvent}
 */
const server = (message, nowMs = 0, unixMs = 0) => ({ type: "server", message, nowMs, unixMs });

/** @param {SessionState} state @param {...SessionEvent} events */
const after = (state, ...events) => events.reduce(reduce, state);

const START = /** @type {const} */ ({ type: "start", sessionId: "s", nowMs: 5 });
const SENT = /** @type {const} */ ({ type: "chunk_sent" });
const running = () => after(initialState(), START, server(QUEUE_DONE), server(PREPARED, 100));

test("a session goes through its phases in order", () => {
  let state = after(initialState(), START);
  assert.equal(state.phase, "connecting");
  state = after(state, server(queued(2)));
  assert.deepEqual(state.queue, { position: 2, etaS: 20, queueLength: 2 });
  state = after(state, server({ ...queued(1), type: "queue_update" }));
  assert.equal(state.phase, "queued");
  state = after(state, server(QUEUE_DONE));
  assert.equal(state.phase, "preparing");
  assert.equal(state.queue, null);
  state = after(state, server(PREPARED, 100));
  assert.equal(state.phase, "running");
  assert.equal(state.activity, "listening");
  assert.equal(state.recordingSessionId, "rec_1");
  assert.equal(runningMs(state, 350), 250);
});

test("what makes no sense in a phase changes nothing", () => {
  const fresh = initialState();
  const started = after(fresh, START);
  for (const event of [server(PREPARED), server(listens()), SENT, server({ type: "paused" })]) {
    assert.equal(reduce(fresh, event), fresh);
    assert.equal(reduce(started, event), started);
  }
  const state = running();
  for (const message of [QUEUE_DONE, PREPARED, queued(1), { type: "resumed" }, { type: "unheard_of" }]) {
    assert.equal(reduce(state, server(message)), state);
  }
  assert.equal(reduce(state, START), state);
});

test("a queue that names the wait only the old way is understood", () => {
  const { eta_seconds: _, ...old } = queued(3, 42);
  assert.equal(after(initialState(), START, server(old)).queue?.etaS, 42);
});

test("turns are written down with their text", () => {
  const state = after(
    running(),
    server(listens(), 1_000),
    server(speaks("Hel", { step: 1 }), 2_000),
    server(speaks("lo.", { step: 2, end_of_turn: true }), 3_000),
    server(listens({ step: 3, turn_id: 1 }), 4_000),
    server(speaks("Yes", { step: 4, turn_id: 1 }), 5_000),
  );
  assert.deepEqual(
    state.turns.map((turn) => turn.text),
    ["Hello.", "Yes"],
  );
  assert.deepEqual(
    state.turns.map((turn) => turn.endedAtMs),
    [3_000, null],
  );
  assert.equal(state.turnCount, 2);
  assert.equal(state.activity, "speaking");
  assert.equal(state.ttfsMs, 1_000);
});

test("the activity follows the sound, not only the turn", () => {
  let state = after(running(), server(speaks("Hi.", { end_of_turn: true })));
  assert.equal(state.activity, "listening");
  state = after(state, { type: "playback", aheadMs: 300 });
  assert.equal(state.activity, "speaking");
  state = after(state, { type: "playback", aheadMs: 0 });
  assert.equal(state.activity, "listening");
});

test("being two units behind is thinking", () => {
  let state = after(running(), SENT);
  assert.equal(state.activity, "listening");
  state = after(state, SENT);
  assert.equal(state.activity, "thinking");
  state = after(state, server(listens()));
  assert.equal(state.activity, "listening");
  state = after(state, SENT, SENT, server({ type: "warning", code: "late_chunk", message: "" }));
  assert.equal(state.chunksServerDropped, 1);
});

test("a barge-in closes the turn and is shown until the next unit", () => {
  let state = after(running(), server(speaks("Once upon")), server(listens({ barge_in: true })));
  assert.equal(state.activity, "interrupted");
  assert.equal(state.turns[0]?.isInterrupted, true);
  assert.equal(state.isTurnOpen, false);
  state = after(state, server(listens()));
  assert.equal(state.activity, "listening");
});

test("listening on for want of sound is no barge-in where the server knows barge-ins", () => {
  const known = after(running(), server(speaks("Once")), server(listens({ barge_in: false })));
  assert.equal(known.isTurnOpen, true);
  const { barge_in: _, ...old } = listens();
  const unknown = after(running(), server(speaks("Once")), server(old));
  assert.equal(unknown.isTurnOpen, false);
  assert.equal(unknown.activity, "interrupted");
});

test("after an interruption sound is thrown away until the model has listened", () => {
  let state = after(running(), server(speaks("Once")), { type: "interrupt_asked" });
  assert.ok(isMuted(state));
  assert.equal(state.activity, "interrupted");
  state = after(state, server(speaks("upon a time")));
  assert.ok(isMuted(state));
  assert.equal(state.units.at(-1)?.isMuted, true);
  state = after(state, server(listens({ barge_in: true })));
  assert.ok(!isMuted(state));
});

test("force listen mutes as long as it is on, and a turn under way until its end", () => {
  let state = after(running(), server(speaks("Once")), { type: "force_listen", isOn: true });
  assert.ok(isMuted(state) && state.isForceListen);
  state = after(state, { type: "force_listen", isOn: false });
  assert.ok(isMuted(state));
  state = after(state, server(listens({ barge_in: true })));
  assert.ok(!isMuted(state));
});

test("a pause needs the server's word and the end of the sound, in either order", () => {
  const asked = after(running(), { type: "pause_asked", isAuto: false });
  assert.equal(asked.phase, "pausing");
  const paused = server({ type: "paused", timeout: 30 }, 1_000);
  const one = after(asked, paused, { type: "drained" });
  const other = after(asked, { type: "drained" }, paused);
  assert.equal(one.phase, "paused");
  assert.equal(other.phase, "paused");
  assert.equal(one.pauseEndsAtMs, 31_000);
  assert.equal(after(asked, paused).phase, "pausing");
  assert.equal(after(asked, { type: "drained" }).phase, "pausing");
});

test("a pause taken back while it is made ends running, whatever comes first", () => {
  const state = after(
    running(),
    { type: "pause_asked", isAuto: true },
    { type: "resume_asked" },
    server({ type: "paused", timeout: 60 }),
    { type: "drained" },
    server({ type: "resumed" }),
  );
  assert.equal(state.phase, "running");
  assert.equal(state.isAutoPaused, false);
});

test("units are kept up to a limit, oldest first out, gaps with their unit", () => {
  let state = running();
  for (let step = 0; step < 650; step += 1) state = after(state, server(listens({ step })));
  assert.equal(state.units.length, 600);
  assert.equal(state.units[0]?.step, 50);
  assert.equal(state.chunksReceived, 650);
  state = after(state, { type: "gap", gapMs: 30 }, { type: "gap", gapMs: 12 }, server(listens()));
  assert.equal(state.units.at(-1)?.gapMs, 42);
  assert.equal(state.gapSinceUnitMs, 0);
});

test("drift is the change of the clocks' difference since the first result", () => {
  const state = after(
    running(),
    server(listens({ server_send_ts: 10 }), 0, 10_500),
    server(listens({ server_send_ts: 11 }), 0, 11_540),
  );
  assert.equal(state.driftMs, 40);
});

test("strange numbers do not get into the figures", () => {
  const strange = { ...speaks("x"), kv_cache_length: "many", cost_all_ms: null, server_send_ts: null };
  const state = after(running(), server(strange));
  assert.equal(state.kvTokens, 20);
  assert.equal(state.units[0]?.costAllMs, 0);
  assert.equal(state.driftMs, null);
});

test("the end keeps what was said and closes what was open", () => {
  const reason = endReason("worker_lost", "gone");
  const state = after(running(), server(speaks("Once")), { type: "ended", reason, nowMs: 900 });
  assert.equal(state.phase, "ended");
  assert.equal(state.end, reason);
  assert.equal(state.turns[0]?.endedAtMs, 900);
  assert.equal(state.activity, "none");
  assert.equal(reduce(state, { type: "ended", reason: endReason("stopped"), nowMs: 1 }), state);
  const again = after(state, START);
  assert.deepEqual([again.phase, again.turns.length, again.end], ["connecting", 0, null]);
});

/** Numbers that look random and are the same each time. Source: Mulberry32, public domain. */
function randomNumbers(/** @type {number} */ seed) {
  let value = seed;
  return () => {
    value = (value + 0x6d2b79f5) | 0;
    let mixed = Math.imul(value ^ (value >>> 15), 1 | value);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** @param {() => number} random @returns {SessionEvent} */
function anyEvent(random) {
  const result = random() < 0.5 ? listens : (/** @type {object} */ given) => speaks("x", given);
  const flags = { barge_in: random() < 0.2, end_of_turn: random() < 0.3, kv_cache_length: 10 };
  /** @type {SessionEvent[]} */
  const events = [
    START,
    SENT,
    server(QUEUE_DONE),
    server(PREPARED),
    server(queued(1)),
    server(result(flags)),
    server(result(flags)),
    server({ type: "paused", timeout: 1 }),
    server({ type: "resumed" }),
    server({ type: "stopped", session_id: "s", recording_session_id: null }),
    server({ type: "warning", code: "late_chunk", message: "" }),
    server({ type: "interrupted" }),
    { type: "pause_asked", isAuto: random() < 0.5 },
    { type: "drained" },
    { type: "resume_asked" },
    { type: "interrupt_asked" },
    { type: "force_listen", isOn: random() < 0.5 },
    { type: "playback", aheadMs: random() < 0.5 ? 0 : 100 },
    { type: "gap", gapMs: 5 },
    { type: "chunk_dropped" },
  ];
  if (random() < 0.03) return { type: "stop_asked" };
  if (random() < 0.03) return { type: "ended", reason: endReason("stopped"), nowMs: 1 };
  return /** @type {SessionEvent} */ (events[Math.floor(random() * events.length)]);
}

const NEXT = /** @type {Record<string, string[]>} */ ({
  idle: ["connecting"],
  connecting: ["queued", "preparing", "stopping", "ended"],
  queued: ["preparing", "stopping", "ended"],
  preparing: ["running", "stopping", "ended"],
  running: ["pausing", "stopping", "ended"],
  pausing: ["paused", "running", "stopping", "ended"],
  paused: ["running", "stopping", "ended"],
  stopping: ["ended"],
  ended: ["connecting"],
});

test("no sequence of events breaks the session's invariants", () => {
  const seen = new Set();
  for (let seed = 1; seed <= 400; seed += 1) {
    const random = randomNumbers(seed);
    let state = initialState();
    for (let step = 0; step < 250; step += 1) {
      const frozen = Object.freeze(state);
      const next = reduce(frozen, anyEvent(random));
      seen.add(next.phase);
      if (next.phase !== state.phase) assert.ok(NEXT[state.phase]?.includes(next.phase), `${state.phase} → ${next.phase}`);
      const isLive = next.phase === "running" || next.phase === "pausing";
      assert.ok(isLive || next.activity === "none");
      assert.equal(next.queue !== null, next.phase === "queued");
      assert.equal(next.end !== null, next.phase === "ended");
      assert.ok(!next.isResuming || next.phase === "pausing" || next.phase === "paused" || next.phase === "stopping");
      assert.ok(next.turns.filter((turn) => turn.endedAtMs === null).length <= 1);
      assert.ok(next.units.length === Math.min(600, next.chunksReceived));
      assert.ok(!(next.activity === "speaking" && isMuted(next)));
      assert.ok(next.isTurnOpen === (next.turns.at(-1)?.endedAtMs === null));
      state = next;
    }
  }
  assert.equal(seen.size, Object.keys(NEXT).length, "every phase was reached");
});
