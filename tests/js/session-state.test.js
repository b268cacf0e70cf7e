import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { isMuted, runningMs } from "../../static/duplex/lib/session-state.js";
import { PREPARED, QUEUE_DONE, listens, queued, speaks } from "./fakes/duplex-messages.js";
import { START, running, stage } from "./fakes/duplex-stage.js";

/** @import { SessionState } from "../../static/duplex/lib/session-state.js" */

const UNIT = { audio: new Float32Array(1) };
const LATE = { type: "warning", code: "late_chunk", message: "" };

beforeEach(() => mock.timers.enable({ apis: ["setTimeout", "setInterval"] }));
afterEach(() => mock.timers.reset());

/** @param {ReturnType<typeof running>} scene @param {...[number, object]} messages each with its time */
const hearAt = ({ clock, socket }, ...messages) => {
  for (const [atMs, message] of messages) {
    clock.atMs = atMs;
    socket.hear(message);
  }
};

test("a session goes through its phases in order", () => {
  const { session, sockets, clock } = stage();
  session.start(START);
  assert.equal(session.state.phase, "connecting");
  const socket = sockets.last();
  socket.open();
  socket.hear(queued(2));
  assert.deepEqual(session.state.queue, { position: 2, etaS: 20, queueLength: 2 });
  socket.hear({ ...queued(1), type: "queue_update" });
  assert.equal(session.state.phase, "queued");
  socket.hear(QUEUE_DONE);
  assert.equal(session.state.phase, "preparing");
  assert.equal(session.state.queue, null);
  clock.atMs = 5_000;
  socket.hear(PREPARED);
  assert.equal(session.state.phase, "running");
  assert.equal(session.state.activity, "listening");
  assert.equal(session.state.recordingSessionId, "rec_1");
  assert.equal(runningMs(session.state, 5_250), 250);
});

test("what makes no sense in a phase changes nothing", () => {
  const { session, sockets } = stage();
  const fresh = session.state;
  session.sendChunk(UNIT);
  session.pause();
  assert.equal(session.state, fresh);
  session.start(START);
  const started = session.state;
  sockets.last().open();
  sockets.last().hear(PREPARED, listens(), { type: "paused" });
  session.sendChunk(UNIT);
  assert.equal(session.state, started);
  const later = running();
  const { state } = later.session;
  later.socket.hear(QUEUE_DONE, PREPARED, queued(1), { type: "resumed" }, { type: "unheard_of" });
  later.session.start(START);
  assert.equal(later.session.state, state);
});

test("a queue that names the wait only the old way is understood", () => {
  const { eta_seconds: _, ...old } = queued(3, 42);
  const { session, sockets } = stage();
  session.start(START);
  sockets.last().hear(old);
  assert.equal(session.state.queue?.etaS, 42);
});

test("turns are written down with their text", () => {
  const scene = running();
  hearAt(
    scene,
    [1_000, listens()],
    [2_000, speaks("Hel", { step: 1 })],
    [3_000, speaks("lo.", { step: 2, end_of_turn: true })],
    [4_000, listens({ step: 3, turn_id: 1 })],
    [5_000, speaks("Yes", { step: 4, turn_id: 1 })],
  );
  const { turns, turnCount, activity, ttfsMs } = scene.session.state;
  assert.deepEqual(
    turns.map((turn) => turn.text),
    ["Hello.", "Yes"],
  );
  assert.deepEqual(
    turns.map((turn) => turn.endedAtMs),
    [3_000, null],
  );
  assert.equal(turnCount, 2);
  assert.equal(activity, "speaking");
  assert.equal(ttfsMs, 1_000);
});

test("the activity follows the sound, not only the turn", () => {
  const { session, socket } = running();
  socket.hear(speaks("Hi.", { end_of_turn: true }));
  assert.equal(session.state.activity, "listening");
  session.notePlayback({ aheadMs: 300 });
  assert.equal(session.state.activity, "speaking");
  session.notePlayback({ aheadMs: 0 });
  assert.equal(session.state.activity, "listening");
});

test("being two units behind is thinking", () => {
  const { session, socket } = running();
  session.sendChunk(UNIT);
  assert.equal(session.state.activity, "listening");
  session.sendChunk(UNIT);
  assert.equal(session.state.activity, "thinking");
  socket.hear(listens());
  assert.equal(session.state.activity, "listening");
  session.sendChunk(UNIT);
  session.sendChunk(UNIT);
  socket.hear(LATE);
  assert.equal(session.state.chunksServerDropped, 1);
});

test("a barge-in closes the turn and is shown until the next unit", () => {
  const { session, socket } = running();
  socket.hear(speaks("Once upon"), listens({ barge_in: true }));
  assert.equal(session.state.activity, "interrupted");
  assert.equal(session.state.turns[0]?.isInterrupted, true);
  assert.equal(session.state.isTurnOpen, false);
  socket.hear(listens());
  assert.equal(session.state.activity, "listening");
});

test("listening on for want of sound is no barge-in where the server knows barge-ins", () => {
  const known = running();
  known.socket.hear(speaks("Once"), listens({ barge_in: false }));
  assert.equal(known.session.state.isTurnOpen, true);
  const { barge_in: _, ...old } = listens();
  const unknown = running();
  unknown.socket.hear(speaks("Once"), old);
  assert.equal(unknown.session.state.isTurnOpen, false);
  assert.equal(unknown.session.state.activity, "interrupted");
});

test("after an interruption sound is thrown away until the model has listened", () => {
  const { session, socket } = running();
  socket.hear(speaks("Once"));
  session.interrupt();
  assert.ok(isMuted(session.state));
  assert.equal(session.state.activity, "interrupted");
  socket.hear(speaks("upon a time"));
  assert.ok(isMuted(session.state));
  assert.equal(session.state.units.at(-1)?.isMuted, true);
  socket.hear(listens({ barge_in: true }));
  assert.ok(!isMuted(session.state));
});

for (const [aheadMs, isInterrupted, what] of /** @type {const} */ ([
  [800, true, "an answer that had come whole and was still sounding counts as interrupted"],
  [0, false, "an answer that was heard to its end does not"],
])) {
  test(what, () => {
    const { session, socket } = running();
    socket.hear(speaks("Hello.", { end_of_turn: true }));
    session.notePlayback({ aheadMs });
    session.interrupt();
    assert.equal(session.state.turns[0].isInterrupted, isInterrupted);
  });
}

test("force listen mutes as long as it is on, and a turn under way until its end", () => {
  const { session, socket } = running();
  socket.hear(speaks("Once"));
  session.setForceListen(true);
  assert.ok(isMuted(session.state) && session.state.isForceListen);
  session.setForceListen(false);
  assert.ok(isMuted(session.state));
  socket.hear(listens({ barge_in: true }));
  assert.ok(!isMuted(session.state));
});

test("a pause needs the server's word and the end of the sound, in either order", () => {
  const one = running();
  one.player.isDrained = false;
  one.session.pause();
  hearAt(one, [1_000, { type: "paused", timeout: 30 }]);
  assert.equal(one.session.state.phase, "pausing");
  assert.equal(one.session.state.pauseEndsAtMs, 31_000);
  one.player.isDrained = true;
  mock.timers.tick(100);
  assert.equal(one.session.state.phase, "paused");
  const other = running();
  other.session.pause();
  assert.ok(other.session.state.isDrained);
  assert.equal(other.session.state.phase, "pausing");
  other.socket.hear({ type: "paused", timeout: 30 });
  assert.equal(other.session.state.phase, "paused");
});

test("a pause taken back while it is made ends running, whatever comes first", () => {
  const { session, socket, player } = running();
  player.isDrained = false;
  session.pause({ isAuto: true });
  session.resume();
  socket.hear({ type: "paused", timeout: 60 });
  player.isDrained = true;
  mock.timers.tick(100);
  socket.hear({ type: "resumed" });
  assert.equal(session.state.phase, "running");
  assert.equal(session.state.isAutoPaused, false);
});

test("units are kept up to a limit, oldest first out, gaps with their unit", () => {
  const { session, socket } = running();
  for (let step = 0; step < 650; step += 1) socket.hear(listens({ step }));
  assert.equal(session.state.units.length, 600);
  assert.equal(session.state.units[0]?.step, 50);
  assert.equal(session.state.chunksReceived, 650);
  for (const gapMs of [30, 12]) session.noteGap({ gapIndex: 1, gapMs, totalShiftMs: 42 });
  socket.hear(listens());
  assert.equal(session.state.units.at(-1)?.gapMs, 42);
  assert.equal(session.state.gapSinceUnitMs, 0);
});

test("drift is the change of the clocks' difference since the first result", () => {
  const scene = running();
  const sentS = (scene.clock.unixMs() - 500) / 1_000;
  const { atMs } = scene.clock;
  hearAt(scene, [atMs, listens({ server_send_ts: sentS })], [atMs + 1_040, listens({ server_send_ts: sentS + 1 })]);
  assert.equal(scene.session.state.driftMs, 40);
});

test("strange numbers do not get into the figures", () => {
  const { session, socket } = running();
  socket.hear({ ...speaks("x"), kv_cache_length: "many", cost_all_ms: null, server_send_ts: null });
  assert.equal(session.state.kvTokens, 20);
  assert.equal(session.state.units[0]?.costAllMs, 0);
  assert.equal(session.state.driftMs, null);
});

test("the end keeps what was said and closes what was open", () => {
  const scene = running();
  const { session, socket } = scene;
  socket.hear(speaks("Once"));
  hearAt(scene, [5_900, { type: "error", code: "worker_lost", message: "gone" }]);
  const { state } = session;
  assert.equal(state.phase, "ended");
  assert.deepEqual([state.end?.code, state.end?.message], ["worker_lost", "gone"]);
  assert.equal(state.turns[0]?.endedAtMs, 5_900);
  assert.equal(state.activity, "none");
  session.stop();
  assert.equal(session.state, state);
  session.start(START);
  assert.deepEqual([session.state.phase, session.state.turns.length, session.state.end], ["connecting", 0, null]);
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

/** Something that may happen to a session, at random. @param {() => number} random @param {ReturnType<typeof stage>} scene */
function anything(random, { session, sockets, player }) {
  const result = random() < 0.5 ? listens : (/** @type {object} */ given) => speaks("x", given);
  const flags = { barge_in: random() < 0.2, end_of_turn: random() < 0.3, kv_cache_length: 10 };
  const socket = sockets.all.at(-1);
  const hear = (/** @type {object} */ message) => () => socket && session.isActive && socket.hear(message);
  const events = [
    () => session.start(START) && sockets.last().readyState === 0 && sockets.last().open(),
    () => session.sendChunk(UNIT),
    hear(QUEUE_DONE),
    hear(PREPARED),
    hear(queued(1)),
    hear(result(flags)),
    hear(result(flags)),
    hear({ type: "paused", timeout: 1 }),
    hear({ type: "resumed" }),
    hear(LATE),
    hear({ type: "interrupted" }),
    () => session.pause({ isAuto: random() < 0.5 }),
    () => mock.timers.tick(100),
    () => void (player.isDrained = random() < 0.5),
    () => session.resume(),
    () => session.interrupt(),
    () => session.setForceListen(random() < 0.5),
    () => session.notePlayback({ aheadMs: random() < 0.5 ? 0 : 100 }),
    () => session.noteGap({ gapIndex: 1, gapMs: 5, totalShiftMs: 5 }),
    () => socket && (socket.bufferedAmount = random() < 0.1 ? 1e9 : 0),
  ];
  if (random() < 0.03) return session.stop();
  if (random() < 0.03) return hear({ type: "stopped", session_id: "s", recording_session_id: null })();
  return events[Math.floor(random() * events.length)]();
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

/** @param {SessionState} state @param {SessionState} next */
function checkStep(state, next) {
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
}

test("no sequence of events breaks the session's invariants", () => {
  const seen = new Set(["idle"]);
  for (let seed = 1; seed <= 400; seed += 1) {
    const random = randomNumbers(seed);
    const scene = stage();
    let { state } = scene.session;
    scene.session.on("state", (next) => {
      seen.add(next.phase);
      checkStep(state, next);
      state = Object.freeze(next);
    });
    for (let step = 0; step < 250; step += 1) anything(random, scene);
    scene.session.close();
  }
  assert.equal(seen.size, Object.keys(NEXT).length, "every phase was reached");
});
