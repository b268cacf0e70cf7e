import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { HalfDuplexSession, SETTLE_MS } from "../../static/duplex/lib/half-duplex-session.js";
import { QUEUE_DONE, queued } from "./fakes/duplex-messages.js";
import { FakeClock, FakePage, collect, fakeSockets, settle } from "./fakes/socket.js";

/** @import { HalfDuplexOptions } from "../../static/duplex/lib/half-duplex-session.js" */

const HALF_SECOND = new Float32Array(8_000);
const PREPARED = { type: "prepared", session_id: "s", timeout_s: 180, recording_session_id: "rec_1" };
const GENERATING = { type: "generating", speech_duration_ms: 1_300 };
const STATS = { cached_tokens: 10, input_tokens: 5, generated_tokens: 4, total_tokens: 19 };

/** @param {Record<string, unknown>} [given] */
const piece = (given = {}) => ({
  type: "chunk",
  chunk_index: 0,
  text_delta: "Hi",
  audio_data: "AAAA",
  audio_sample_rate: 24_000,
  is_final: false,
  duration_ms: 30,
  ...given,
});

/** @param {Record<string, unknown>} [given] */
const turnDone = (given = {}) => ({
  type: "turn_done",
  turn_index: 0,
  text: "Hi there.",
  interrupted: false,
  elapsed_ms: 200,
  kv_cache_length: 19,
  token_stats: STATS,
  ...given,
});

beforeEach(() => mock.timers.enable({ apis: ["setTimeout", "setInterval"] }));
afterEach(() => mock.timers.reset());

/** @param {Partial<HalfDuplexOptions>} [options] */
function stage(options = {}) {
  const sockets = fakeSockets();
  const clock = new FakeClock();
  const page = new FakePage();
  const player = { isDrained: true };
  const session = new HalfDuplexSession({
    url: (id) => `ws://test/ws/half_duplex/${id}`,
    socketFactory: sockets.factory,
    clock,
    visibility: page.source,
    isDrained: () => player.isDrained,
    probe: async () => ({ isOnline: true, isReachable: false, isReady: false, isAppEnabled: true }),
    ...options,
  });
  const events = collect(session, "queue", "prepared", "speak", "turnend", "flush", "warning", "ended");
  return { session, sockets, clock, page, player, events };
}

/** @param {Partial<HalfDuplexOptions>} [options] */
function listening(options) {
  const scene = stage(options);
  scene.session.start({ system_prompt: "Be kind.", config: { vad: { threshold: 0.7 } } });
  const socket = scene.sockets.last();
  socket.open();
  socket.hear(QUEUE_DONE, PREPARED);
  scene.events.length = 0;
  return { ...scene, socket };
}

/** @param {Array<{type: string, detail: any}>} events any: as collected @param {string} type */
const of = (events, type) => events.filter((event) => event.type === type).map(({ detail }) => detail);

test("it queues, prepares with the page's settings and listens", () => {
  const { session, sockets, events } = stage();
  assert.match(session.start({ system_prompt: "Be kind." }), /^hdx_/);
  const socket = sockets.last();
  socket.open();
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "not_running");
  socket.hear(queued(1), QUEUE_DONE);
  assert.deepEqual(socket.sent, [{ type: "prepare", system_prompt: "Be kind." }]);
  socket.hear(PREPARED);
  assert.equal(session.state.activity, "listening");
  assert.deepEqual(
    of(events, "queue").map((place) => place?.position ?? null),
    [1, null],
  );
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "sent");
  assert.equal(socket.last.audio_base64.length, 42_668);
});

test("a turn goes through hearing, thinking, speaking and settling", () => {
  const { session, socket, clock, player, events } = listening();
  /** @type {string[]} */
  const seen = [];
  session.on("state", ({ activity }) => seen.at(-1) !== activity && seen.push(activity));
  socket.hear({ type: "vad_state", speaking: true }, { type: "vad_state", speaking: false }, GENERATING);
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "gated");
  clock.atMs += 120;
  player.isDrained = false;
  socket.hear(piece(), piece({ chunk_index: 1, text_delta: " there." }));
  socket.hear(piece({ chunk_index: 2, text_delta: null, audio_data: null, is_final: true }), turnDone());
  mock.timers.tick(5_000);
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "gated");
  player.isDrained = true;
  mock.timers.tick(100);
  assert.equal(session.state.gate, "settling");
  mock.timers.tick(SETTLE_MS - 1);
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "gated");
  mock.timers.tick(1);
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "sent");
  assert.deepEqual(seen, ["hearing", "listening", "thinking", "speaking", "settling", "listening"]);
  assert.deepEqual(
    of(events, "speak").map((said) => [said.text, said.isTurnStart]),
    [
      ["Hi", true],
      [" there.", false],
    ],
  );
  assert.deepEqual(of(events, "turnend"), [{ turnId: 0 }]);
  const [turn] = session.state.turns;
  assert.deepEqual(
    [turn.turnIndex, turn.text, turn.ttftMs, turn.ttfsMs, turn.speechMs, turn.tokenStats],
    [0, "Hi there.", 120, 120, 1_300, STATS],
  );
});

test("a stopped answer is silent at once and the session goes on", () => {
  const { session, socket, events } = listening();
  socket.hear(GENERATING, piece());
  session.interrupt();
  session.interrupt();
  assert.deepEqual(socket.kinds, ["prepare", "interrupt"]);
  assert.equal(session.state.activity, "interrupted");
  socket.hear(piece({ chunk_index: 1 }), turnDone({ interrupted: true }));
  assert.equal(of(events, "speak").length, 1);
  assert.deepEqual(of(events, "flush"), [{ cause: "interrupt" }]);
  assert.equal(of(events, "turnend").length, 1);
  assert.equal(session.state.turns[0].isInterrupted, true);
  mock.timers.tick(SETTLE_MS);
  assert.equal(session.state.activity, "listening");
});

test("stopping an answer that is complete stops its playback alone", () => {
  const { session, socket, player, events } = listening();
  player.isDrained = false;
  socket.hear(GENERATING, piece(), turnDone());
  session.interrupt();
  assert.deepEqual(socket.kinds, ["prepare"]);
  assert.equal(of(events, "flush").length, 1);
  assert.equal(session.state.turns[0].isInterrupted, true);
  player.isDrained = true;
  mock.timers.tick(100);
  mock.timers.tick(SETTLE_MS);
  assert.equal(session.state.gate, "open");
});

test("an answer that was complete before the server heard of the stop counts as stopped", () => {
  const { session, socket } = listening();
  socket.hear(GENERATING, piece());
  session.interrupt();
  socket.hear(turnDone({ interrupted: false }));
  assert.equal(session.state.turns[0].isInterrupted, true);
});

test("an interruption that was lost with its socket is repeated on the next one", () => {
  const { session, sockets, socket } = listening();
  socket.hear({ type: "session_resumable", session_id: "s", resume_token: "abc", grace_s: 60 }, GENERATING, piece());
  socket.vanish();
  session.interrupt();
  mock.timers.tick(200);
  sockets.last().open();
  sockets.last().hear({ type: "session_resumed", last_seq: 5, lost_messages: 0, away_ms: 200 });
  assert.deepEqual(sockets.last().kinds, ["interrupt"]);
});

test("there is nothing to interrupt while it listens", () => {
  const { session, socket } = listening();
  session.interrupt();
  assert.deepEqual(socket.kinds, ["prepare"]);
});

test("a second answer right after the first keeps the microphone closed", () => {
  const { session, socket } = listening();
  socket.hear(GENERATING, piece(), turnDone(), GENERATING);
  mock.timers.tick(10_000);
  assert.equal(session.state.gate, "generating");
  socket.hear(piece(), turnDone({ turn_index: 1 }));
  mock.timers.tick(SETTLE_MS);
  assert.equal(session.state.gate, "open");
  assert.deepEqual(
    session.state.turns.map((turn) => turn.turnIndex),
    [0, 1],
  );
});

test("the time that is left runs while it listens and not while it answers", () => {
  const { session, socket, clock } = listening();
  clock.atMs += 30_000;
  assert.equal(session.remainingS, 150);
  session.sendChunk({ audio: HALF_SECOND });
  assert.equal(session.remainingS, 180);
  socket.hear(GENERATING);
  clock.atMs += 60_000;
  assert.equal(session.remainingS, 180);
  clock.atMs += 1_000_000;
  socket.hear(turnDone());
  mock.timers.tick(SETTLE_MS);
  assert.equal(session.remainingS, 180);
});

test("a limit on the whole session counts from its beginning", () => {
  const { session, clock } = listening({ getMaxSessionS: () => 100 });
  clock.atMs += 40_000;
  session.sendChunk({ audio: HALF_SECOND });
  assert.equal(session.remainingS, 60);
  clock.atMs += 100_000;
  assert.equal(session.remainingS, 0);
});

test("the microphone is kept back by hand and while the page is hidden", () => {
  const { session, page } = listening();
  session.setMicMuted(true);
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "gated");
  page.set(true);
  session.setMicMuted(false);
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "gated");
  page.set(false);
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "sent");
});

test("a slow network costs the newest chunks, and it is told", () => {
  const { session, socket, events } = listening();
  socket.bufferedAmount = 300_000;
  assert.equal(session.sendChunk({ audio: HALF_SECOND }), "upload_dropped");
  assert.deepEqual(of(events, "warning"), [{ code: "upload_slow", message: "", count: 1 }]);
});

test("a reply that failed and was undone ends its turn and nothing else", () => {
  const { session, socket, events } = listening();
  socket.hear(GENERATING, { type: "warning", code: "generation_failed", message: "Sorry." });
  socket.hear(turnDone({ interrupted: true, text: "" }));
  mock.timers.tick(SETTLE_MS);
  assert.equal(session.state.activity, "listening");
  assert.equal(of(events, "warning")[0].code, "generation_failed");
});

test("stop ends it with the server's answer", () => {
  const { session, socket, events } = listening();
  session.stop();
  assert.equal(session.state.phase, "stopping");
  socket.hear({ type: "stopped", session_id: "s", recording_session_id: "rec_9" });
  assert.equal(of(events, "ended")[0].reason.code, "stopped");
  assert.equal(session.state.recordingSessionId, "rec_9");
  assert.equal(session.remainingS, null);
});

/** @type {Array<[string, object, string, string]>} */
const ENDS = [
  ["silence", { type: "timeout", reason: "inactivity", elapsed_s: 180.2 }, "timeout", "inactivity"],
  ["its length", { type: "timeout", reason: "max_session", elapsed_s: 600 }, "timeout", "max_session"],
  ["a full context", { type: "error", code: "context_full", error: "Full." }, "context_full", ""],
  ["a lost worker", { type: "error", code: "worker_lost", message: "Lost." }, "worker_lost", ""],
];

for (const [what, message, code, detail] of ENDS) {
  test(`${what} ends it, and a restart begins with the same settings`, () => {
    const { session, socket, sockets, events } = listening();
    socket.hear(GENERATING, piece(), message);
    const [{ reason }] = of(events, "ended");
    assert.deepEqual([reason.code, reason.detail], [code, detail]);
    session.restart();
    sockets.last().open();
    sockets.last().hear(QUEUE_DONE, PREPARED);
    assert.equal(sockets.last().sent[0]?.config.vad.threshold, 0.7);
    assert.equal(session.sendChunk({ audio: HALF_SECOND }), "sent");
  });
}

test("a lost server ends it, and leaving the page stops it", async () => {
  const lost = listening();
  lost.socket.vanish();
  await settle();
  assert.equal(of(lost.events, "ended")[0].reason.code, "server_gone");
  const left = listening();
  left.page.leave();
  assert.equal(left.socket.last.type, "stop");
  assert.equal(of(left.events, "ended")[0].reason.code, "page_left");
  left.session.close();
  assert.equal(left.page.listeners, 0);
});

test("messages out of place and unreadable ones change nothing", () => {
  const { session, socket, events } = listening();
  const { state } = session;
  socket.hear(piece(), turnDone(), QUEUE_DONE, { type: "chunk" }, "no json");
  assert.equal(session.state, state);
  assert.deepEqual(
    events.map(({ type }) => type),
    ["warning"],
  );
});

test("no sequence of messages breaks the gate", () => {
  const { session, socket, player, clock } = listening();
  const messages = [
    QUEUE_DONE,
    PREPARED,
    queued(1),
    GENERATING,
    piece(),
    turnDone(),
    { type: "vad_state", speaking: true },
    { type: "vad_state", speaking: false },
  ];
  let pick = 7;
  const random = (/** @type {number} */ count) => (pick = (pick * 48_271) % 2_147_483_647) % count;
  const others = [
    () => session.sendChunk({ audio: HALF_SECOND.subarray(0, 1) }),
    () => mock.timers.tick(100),
    () => mock.timers.tick(SETTLE_MS),
    () => session.interrupt(),
    () => void (player.isDrained = random(2) === 1),
  ];
  let { state } = session;
  session.on("state", (next) => {
    if (state.gate !== next.gate && next.gate === "open") assert.equal(state.gate, "settling");
    if (next.gate === "generating" || next.gate === "playing") assert.ok(next.turns.length > 0);
    assert.ok(next.turns.slice(0, -1).every((turn) => turn.isDone));
    assert.ok(next.chunksSent === state.chunksSent || state.gate === "open");
    state = Object.freeze(next);
  });
  for (let step = 0; step < 20_000; step += 1) {
    clock.atMs = step;
    if (random(2)) socket.hear(messages[random(messages.length)]);
    else others[random(others.length)]();
  }
  assert.ok(state.turnCount > 100);
});

test("the words of a turn are shown with it whenever they come", () => {
  const { session, socket } = listening();
  socket.hear(GENERATING, turnDone());
  const words = (/** @type {number} */ index, /** @type {string} */ text) => ({
    type: "user_transcript",
    text,
    start_ms: 0,
    duration_ms: 900,
    turn_index: index,
  });
  socket.hear(words(7, "Unknown."), words(0, " Hello. "));
  assert.deepEqual(
    session.state.turns.map(({ userText }) => userText),
    ["Hello."],
  );
});
