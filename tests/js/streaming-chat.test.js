import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { StreamingChat, TurnError } from "../../static/turnbased/streaming-chat.js";
import { estimateWaitS, turnOptions } from "../../static/turnbased/turn.js";
import { QUEUE_DONE, queued } from "./fakes/duplex-messages.js";
import { FakeClock, collect, fakeSockets, settle } from "./fakes/socket.js";

/** @import { Message } from "../../types/protocol.js" */
/** @import { StreamingChatOptions } from "../../static/turnbased/streaming-chat.js" */

/** @type {Message[]} */
const HELLO = [{ role: "user", content: "Hello." }];
const OPTIONS = turnOptions({ hasVoice: true, maxNewTokens: 64 }, HELLO);
const STATS = { cached_tokens: 0, input_tokens: 12, generated_tokens: 3, total_tokens: 15 };

/** @param {number} [cached] */
const prefillDone = (cached = 0) => ({
  type: "prefill_done",
  cached_tokens: cached,
  input_tokens: 12,
  message_count: 1,
  prompt_length: 9,
  cache_hit: cached > 0,
  recording_session_id: "rec_1",
});

/** @param {Record<string, unknown>} [given] */
const piece = (given = {}) => ({
  type: "chunk",
  chunk_index: 0,
  text_delta: " Hi",
  audio_data: null,
  audio_sample_rate: 24_000,
  is_final: false,
  duration_ms: 9,
  ...given,
});

/** @param {Record<string, unknown>} [given] */
const done = (given = {}) => ({
  type: "done",
  session_id: "s",
  text: " Hi you",
  elapsed_ms: 99,
  stopped: false,
  token_stats: STATS,
  recording_session_id: "rec_1",
  ...given,
});

beforeEach(() => mock.timers.enable({ apis: ["setTimeout", "setInterval"] }));
afterEach(() => mock.timers.reset());

/** @param {Partial<StreamingChatOptions>} [options] */
function stage(options = {}) {
  const sockets = fakeSockets();
  const clock = new FakeClock();
  const probe = { isOnline: true, isReachable: true, isReady: true, isAppEnabled: true };
  const chat = new StreamingChat({
    url: (id) => `ws://test/ws/streaming/${id}`,
    socketFactory: sockets.factory,
    nowMs: clock.nowMs,
    probe: async () => probe,
    postChat: async () =>
      Promise.reject(Object.assign(new Error("The server could not be reached."), { code: "offline", status: 0 })),
    ...options,
  });
  const events = collect(chat, "queue", "text", "audio", "warning");
  return { chat, sockets, clock, probe, events };
}

/** @param {Partial<StreamingChatOptions>} [options] */
function asked(options) {
  const scene = stage(options);
  const answer = scene.chat.send(HELLO, OPTIONS);
  answer.catch(() => {}); // each test looks at it itself
  scene.sockets.last().open();
  return { ...scene, answer, socket: scene.sockets.last() };
}

/** @param {Promise<unknown>} answer */
async function failure(answer) {
  const error = await answer.then(
    () => null,
    (reason) => reason,
  );
  assert.ok(error instanceof TurnError);
  return error;
}

test("a turn that waits when the server ends comes back to its place", async () => {
  const { socket, sockets, clock, answer } = asked();
  socket.hear({ ...queued(3), return_ticket: "1.2.a" }, { type: "error", code: "shutting_down", message: "bye" });
  socket.vanish(1001);
  mock.timers.tick(200);
  sockets.last().vanish(); // not there yet
  mock.timers.tick(500);
  const next = sockets.last();
  assert.equal(new URL(next.url).searchParams.get("ticket"), "1.2.a");
  next.open();
  assert.equal(next.last.type, "prefill");
  next.hear(queued(2), QUEUE_DONE);
  next.vanish(1001); // a worker was there: the answer is lost
  mock.timers.tick(2_000);
  assert.equal((await failure(answer)).code, "shutting_down");
  assert.equal(sockets.all.length, 3);
  const late = asked();
  late.socket.hear({ ...queued(1), return_ticket: "1.2.a" });
  while (late.sockets.all.length < 100 && late.chat.isBusy) {
    late.sockets.last().vanish();
    late.clock.atMs += 2_000;
    mock.timers.tick(2_000);
    await settle();
  }
  assert.equal((await failure(late.answer)).code, "server_gone");
  assert.ok(late.sockets.all.length <= 33, String(late.sockets.all.length));
  assert.ok(clock.atMs < late.clock.atMs);
});

test("a turn is prefilled, generated and told with its figures", async () => {
  const { socket, clock, answer, events, chat } = asked();
  assert.deepEqual(socket.sent, [{ ...OPTIONS.prefill, type: "prefill", messages: HELLO }]);
  socket.hear(queued(1, 4));
  clock.atMs += 3_000;
  socket.hear({ ...queued(1, 2), type: "queue_update" }, QUEUE_DONE);
  clock.atMs += 100;
  socket.hear(prefillDone());
  assert.deepEqual(socket.last, { ...OPTIONS.generate, type: "generate" });
  clock.atMs += 50;
  socket.hear(piece());
  clock.atMs += 50;
  socket.hear(piece({ chunk_index: 1, text_delta: " you", audio_data: "AAAA" }));
  socket.hear(piece({ chunk_index: 2, text_delta: null, is_final: true }));
  socket.hear(done());
  const result = await answer;
  assert.equal(result.text, " Hi you");
  assert.deepEqual(
    [
      result.queueEstimateS,
      result.queueActualMs,
      result.prefillMs,
      result.ttftMs,
      result.ttfaMs,
      result.generateMs,
      result.totalMs,
    ],
    [4, 3_000, 100, 3_150, 3_200, 100, 3_200],
  );
  assert.deepEqual([result.chunkCount, result.inputTokens, result.transport], [2, 12, "socket"]);
  assert.equal(result.recordingSessionId, "rec_1");
  assert.deepEqual(
    events.map(({ type }) => type),
    ["queue", "queue", "queue", "text", "text", "audio"],
  );
  assert.equal(events[4]?.detail.text, " Hi you");
  assert.equal(chat.isBusy, false);
});

test("the next turn uses the same socket and finds the cache", async () => {
  const { chat, sockets, socket, answer } = asked();
  socket.hear(QUEUE_DONE, prefillDone(), piece(), done());
  await answer;
  const next = chat.send(HELLO, OPTIONS);
  assert.equal(socket.last.type, "prefill");
  socket.hear(QUEUE_DONE, prefillDone(80), done({ text: "Yes" }));
  const result = await next;
  assert.deepEqual([result.cachedTokens, result.isCacheHit, sockets.all.length], [80, true, 1]);
});

test("two turns at once are refused", () => {
  const { chat } = asked();
  assert.throws(() => chat.send(HELLO, OPTIONS), /already/);
});

test("stop keeps what was said, and plays no more of it", async () => {
  const { chat, socket, answer, events } = asked();
  socket.hear(QUEUE_DONE, prefillDone(), piece());
  chat.stop();
  chat.stop();
  assert.equal(socket.kinds.filter((kind) => kind === "stop").length, 1);
  assert.equal(chat.progress?.phase, "stopping");
  socket.hear(piece({ chunk_index: 1, text_delta: " you", audio_data: "AAAA" }), done({ stopped: true }));
  const result = await answer;
  assert.deepEqual([result.isStopped, result.text], [true, " Hi you"]);
  assert.ok(!events.some(({ type }) => type === "audio"));
});

test("stop during prefill asks for no answer", async () => {
  const { chat, socket, answer } = asked();
  socket.hear(QUEUE_DONE);
  chat.stop();
  socket.hear(prefillDone());
  assert.deepEqual(socket.kinds, ["prefill", "stop"]);
  socket.hear(done({ stopped: true, text: "" }));
  assert.equal((await answer).text, "");
});

test("stop in the queue ends the wait", async () => {
  const { chat, socket, answer, events } = asked();
  socket.hear(queued(3));
  chat.stop();
  socket.hear(done({ stopped: true, text: "" }));
  assert.equal((await answer).isStopped, true);
  assert.equal(events.at(-1)?.detail, null);
});

test("stop before the socket is open ends at once", async () => {
  const { chat, sockets } = stage();
  const answer = chat.send(HELLO, OPTIONS);
  chat.stop();
  assert.equal((await answer).isStopped, true);
  assert.ok(sockets.last().isClosedByClient);
});

test("a server that does not answer stop is left after a while, with what there is", async () => {
  const { chat, sockets, socket, answer } = asked();
  socket.hear(QUEUE_DONE, prefillDone(), piece());
  chat.stop();
  mock.timers.tick(10_000);
  assert.equal((await answer).text, " Hi");
  chat.send(HELLO, OPTIONS).catch(() => {});
  assert.equal(sockets.all.length, 2);
});

test("a socket lost between turns costs nothing", async () => {
  const { chat, sockets, socket, answer } = asked();
  socket.hear(QUEUE_DONE, prefillDone(), done());
  await answer;
  socket.hear({ type: "error", code: "timeout", message: "No turn began." });
  socket.vanish(1000, "timeout");
  const next = chat.send(HELLO, OPTIONS);
  assert.equal(sockets.all.length, 2);
  sockets.last().open();
  sockets.last().hear(QUEUE_DONE, prefillDone(80), done({ text: "Yes" }));
  assert.equal((await next).cachedTokens, 80);
  assert.equal(sockets.all[0]?.url, sockets.all[1]?.url);
});

test("a socket that proves stale when it is used again is opened anew, once", async () => {
  const { chat, sockets, socket, answer } = asked();
  socket.hear(QUEUE_DONE, prefillDone(), done());
  await answer;
  const next = chat.send(HELLO, OPTIONS);
  socket.vanish();
  assert.equal(sockets.all.length, 2);
  sockets.last().open();
  assert.equal(sockets.last().last.type, "prefill");
  sockets.last().vanish();
  assert.equal((await failure(next)).code, "network_lost");
});

test("an error ends the turn with its code and what was said so far", async () => {
  const { socket, answer, chat } = asked();
  socket.hear(QUEUE_DONE, prefillDone(), piece(), { type: "error", code: "generation_failed", error: "No." });
  const error = await failure(answer);
  assert.deepEqual([error.code, error.message, error.partial.text], ["generation_failed", "No.", " Hi"]);
  assert.equal(error.partial.phase, "failed");
  assert.equal(chat.isBusy, false);
});

/** @type {Array<[string, object, string]>} */
const LOSSES = [
  ["the network", { isOnline: false }, "network_lost"],
  ["the server", { isReachable: false }, "server_gone"],
];

for (const [what, seen, code] of LOSSES) {
  test(`losing ${what} in a turn ends it as ${code}`, async () => {
    const { socket, answer, probe } = asked();
    Object.assign(probe, seen);
    socket.hear(QUEUE_DONE);
    socket.vanish();
    assert.equal((await failure(answer)).code, code);
  });
}

for (const [seen, code] of /** @type {Array<[object, string]>} */ ([
  [{ isReady: false }, "not_ready"],
  [{ isAppEnabled: false }, "app_disabled"],
  [{ isReachable: false }, "server_gone"],
])) {
  test(`a socket refused because of ${Object.keys(seen)} ends as ${code}`, async () => {
    const { chat, sockets, probe } = stage();
    Object.assign(probe, seen);
    const answer = chat.send(HELLO, OPTIONS);
    sockets.last().vanish();
    assert.equal((await failure(answer)).code, code);
  });
}

test("where no socket can be opened the turn goes over HTTP", async () => {
  /** @type {object[]} */
  const posted = [];
  const reply = {
    text: "Hi.",
    audio_data: "UklGRg==",
    audio_sample_rate: 24_000,
    success: true,
    token_stats: STATS,
    duration_ms: 90,
    queue_wait_ms: 5,
    estimated_queue_wait_s: 1,
    recording_session_id: "rec_2",
  };
  const { chat, sockets, events } = stage({ postChat: async (turn) => (posted.push(turn), reply) });
  const answer = chat.send(HELLO, OPTIONS);
  sockets.last().vanish();
  const result = await answer;
  assert.deepEqual(
    [result.transport, result.text, result.wavBase64, result.inputTokens, result.recordingSessionId],
    ["http", "Hi.", "UklGRg==", 12, "rec_2"],
  );
  assert.equal(posted.length, 1);
  assert.deepEqual(
    events.map(({ type, detail }) => [type, detail.kind]),
    [
      ["text", undefined],
      ["audio", "wav"],
    ],
  );
});

test("a refusal over HTTP is told with its code, a stop ends it", async () => {
  const refused = stage({ postChat: async () => Promise.reject(Object.assign(new Error("Full."), { code: "queue_full" })) });
  const answer = refused.chat.send(HELLO, OPTIONS);
  refused.sockets.last().vanish();
  assert.equal((await failure(answer)).code, "queue_full");

  const waits = stage({ postChat: (_, signal) => new Promise((__, reject) => signal.addEventListener("abort", reject)) });
  const stopped = waits.chat.send(HELLO, OPTIONS);
  waits.sockets.last().vanish();
  await settle();
  waits.chat.stop();
  assert.equal((await stopped).isStopped, true);
});

test("messages between turns and unreadable ones change nothing", async () => {
  const { chat, socket, answer, events } = asked();
  socket.hear("no json", { type: "warning", code: "context_nearly_full", message: "Soon." });
  assert.deepEqual(
    events.map(({ detail }) => detail.code),
    ["malformed_message", "context_nearly_full"],
  );
  socket.hear(QUEUE_DONE, prefillDone(), done());
  await answer;
  socket.hear(piece(), done(), { type: "warning", code: "out_of_order", message: "" });
  assert.equal(events.length, 2);
  assert.equal(chat.isBusy, false);
});

test("a new conversation has a new id and ends the turn of the old one", async () => {
  const { chat, answer } = asked();
  const before = chat.sessionId;
  chat.reset();
  assert.equal((await failure(answer)).code, "cancelled");
  assert.notEqual(chat.sessionId, before);
});

test("closing says goodbye", async () => {
  const { chat, socket, answer } = asked();
  socket.hear(QUEUE_DONE, prefillDone(), done());
  await answer;
  chat.close();
  assert.equal(socket.last.type, "close");
  assert.ok(socket.isClosedByClient);
});

test("the wait is estimated from what runs and what waits", () => {
  const running_tasks = [{ estimated_remaining_s: 10 }, { estimated_remaining_s: 20 }];
  assert.equal(estimateWaitS({ free_slots: 1, queue_length: 0, running_tasks }), 0);
  assert.equal(estimateWaitS({ free_slots: 0, queue_length: 0, running_tasks }), 15);
  assert.equal(estimateWaitS({ free_slots: 0, queue_length: 3, running_tasks }), 45);
  assert.equal(estimateWaitS({ free_slots: 0, queue_length: 0, running_tasks: [] }), 0);
});
