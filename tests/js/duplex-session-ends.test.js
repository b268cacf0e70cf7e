import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { PREPARED, QUEUE_DONE, listens, queued, speaks } from "./fakes/duplex-messages.js";
import { START, running, stage } from "./fakes/duplex-stage.js";
import { settle } from "./fakes/socket.js";

/** @import { ServerProbe } from "../../static/shared/server-messages.js" */

const SECOND = new Float32Array(16_000);

beforeEach(() => mock.timers.enable({ apis: ["setTimeout", "setInterval"] }));
afterEach(() => mock.timers.reset());

test("stop sends a summary and stop, waits for stopped, and ends once", () => {
  const { session, socket, events, ended } = running();
  session.sendChunk({ audio: SECOND });
  socket.hear(listens());
  session.stop();
  session.stop();
  assert.deepEqual(socket.kinds.slice(-2), ["client_diagnostic", "stop"]);
  assert.equal(socket.sent.at(-2)?.metrics.event, "summary");
  assert.equal(session.state.phase, "stopping");
  socket.hear(speaks("late"));
  assert.ok(!events.some(({ type }) => type === "speak"));
  socket.hear({ type: "stopped", session_id: "s", recording_session_id: "rec_2" });
  socket.vanish(1000);
  assert.deepEqual(
    ended().map(({ code }) => code),
    ["stopped"],
  );
  assert.equal(session.state.recordingSessionId, "rec_2");
  assert.ok(socket.isClosedByClient);
});

test("a server that does not answer stop is left after a while", () => {
  const { session, ended } = running();
  session.stop();
  mock.timers.tick(8_000);
  assert.deepEqual(
    ended().map(({ code }) => code),
    ["stopped"],
  );
});

test("leaving the queue says so and ends as cancelled", () => {
  const { session, sockets, ended, events } = stage();
  session.start(START);
  sockets.last().open();
  sockets.last().hear(queued(1));
  session.stop();
  assert.deepEqual(sockets.last().kinds, ["stop"]);
  sockets.last().hear({ type: "stopped", session_id: "s", recording_session_id: null });
  assert.deepEqual(
    ended().map(({ code, isByUser }) => [code, isByUser]),
    [["cancelled", true]],
  );
  assert.equal(events.filter(({ type }) => type === "flush").length, 1);
});

test("giving up before the socket is open ends at once", () => {
  const { session, sockets, ended } = stage();
  session.start(START);
  session.stop();
  assert.deepEqual(
    ended().map(({ code }) => code),
    ["cancelled"],
  );
  sockets.last().vanish();
  assert.equal(ended().length, 1);
});

test("a full context ends the session by the page's own limit", () => {
  const { session, socket, ended } = running({ getMaxKvTokens: () => 500 });
  socket.hear(listens({ kv_cache_length: 499 }));
  assert.equal(session.state.phase, "running");
  socket.hear(listens({ kv_cache_length: 500 }), listens({ kv_cache_length: 501 }));
  assert.equal(session.state.phase, "stopping");
  assert.equal(socket.kinds.filter((kind) => kind === "stop").length, 1);
  socket.hear({ type: "stopped", session_id: "s", recording_session_id: null });
  assert.deepEqual(
    ended().map(({ code, isByUser }) => [code, isByUser]),
    [["kv_limit", false]],
  );
});

const ERRORS = [
  ["queue_full", "queue_full"],
  ["queue_cancelled", "queue_cancelled"],
  ["no_worker", "not_ready"],
  ["shutting_down", "shutting_down"],
  ["worker_unreachable", "worker_lost"],
  ["worker_lost", "worker_lost"],
  ["session_in_use", "session_in_use"],
  ["ended_by_admin", "ended_by_admin"],
  ["context_full", "context_full"],
  ["bad_config", "bad_config"],
  ["timeout", "timeout"],
  ["internal", "internal"],
  ["a_code_of_tomorrow", "internal"],
];

for (const [wire, code] of ERRORS) {
  test(`the error ${wire} ends the session as ${code}`, () => {
    const { socket, ended } = running();
    socket.hear({ type: "error", code: wire, error: "Words.", message: "Words.", fatal: true });
    socket.vanish(1011, wire);
    assert.deepEqual(
      ended().map((reason) => [reason.code, reason.message]),
      [[code, "Words."]],
    );
  });
}

test("an error of an older server has its text under message alone", () => {
  const { socket, ended } = running();
  socket.hear({ type: "error", message: "Old words." });
  assert.deepEqual(
    ended().map((reason) => [reason.code, reason.message]),
    [["internal", "Old words."]],
  );
});

for (const reason of ["pause", "max_session", "inactivity"]) {
  test(`a timeout of kind ${reason} ends the session`, () => {
    const { socket, ended } = running();
    socket.hear({ type: "timeout", reason, elapsed_s: 60, session_id: "s" });
    assert.deepEqual(
      ended().map(({ code, detail }) => [code, detail]),
      [["timeout", reason]],
    );
  });
}

test("being stopped from elsewhere ends the session", () => {
  const { socket, ended } = running();
  socket.hear({ type: "stopped", session_id: "s", recording_session_id: null });
  assert.deepEqual(
    ended().map(({ code }) => code),
    ["stopped"],
  );
});

/** @type {Array<[number, string, string]>} */
const CLOSES = [
  [1001, "", "shutting_down"],
  [1001, "shutting_down", "shutting_down"],
  [1013, "", "not_ready"],
  [1013, "queue_full", "queue_full"],
  [1008, "Omni is currently disabled", "app_disabled"],
  [1008, "session_in_use", "session_in_use"],
  [1008, "", "refused"],
  [1009, "", "too_big"],
  [1011, "", "internal"],
  [1007, "", "bad_json"],
  [1000, "", "closed"],
  [4000, "", "closed"],
];

for (const [closeCode, closeReason, code] of CLOSES) {
  test(`closing with ${closeCode} ${closeReason || "without a reason"} ends as ${code}`, async () => {
    const { socket, ended } = running();
    socket.vanish(closeCode, closeReason);
    await settle();
    assert.deepEqual(
      ended().map((reason) => reason.code),
      [code],
    );
  });
}

/** @type {Array<[string, Partial<ServerProbe>, boolean, string]>} */
const LOSSES = [
  ["the network", { isOnline: false, isReachable: false }, true, "network_lost"],
  ["the connection alone", {}, true, "network_lost"],
  ["the server", { isReachable: false }, true, "server_gone"],
  ["a server that was never there", { isReachable: false }, false, "server_gone"],
  ["a refusal while workers load", { isReady: false }, false, "not_ready"],
  ["a refusal of a disabled app", { isAppEnabled: false }, false, "app_disabled"],
  ["a proxy that blocks sockets", {}, false, "socket_blocked"],
];

for (const [what, probe, isOpened, code] of LOSSES) {
  test(`losing ${what} ends as ${code}`, async () => {
    const scene = stage();
    Object.assign(scene.server, probe);
    scene.session.start(START);
    if (isOpened) scene.sockets.last().open();
    scene.sockets.last().vanish();
    await settle();
    assert.deepEqual(
      scene.ended().map((reason) => reason.code),
      [code],
    );
    assert.equal(scene.session.state.phase, "ended");
  });
}

test("an address the browser refuses ends the session in words", async () => {
  const scene = stage({
    socketFactory: () => {
      throw new Error("insecure");
    },
  });
  scene.session.start(START);
  await settle();
  assert.deepEqual(
    scene.ended().map(({ code }) => code),
    ["socket_blocked"],
  );
});

test("there is no new socket in the middle of a session, and a restart in one call", async () => {
  const { session, socket, sockets } = running();
  const first = session.state.sessionId;
  socket.vanish();
  await settle();
  mock.timers.tick(60_000);
  assert.equal(sockets.all.length, 1);
  assert.notEqual(session.restart(), first);
  assert.equal(sockets.all.length, 2);
  sockets.last().open();
  sockets.last().hear(QUEUE_DONE, PREPARED);
  assert.equal(sockets.last().sent[0]?.prefix_system_prompt, "Be kind.");
  assert.equal(session.state.phase, "running");
  assert.equal(session.sendChunk({ audio: SECOND }), "sent");
  assert.equal(sockets.last().last.seq, 0);
});

test("messages that cannot be read are left out with a warning", () => {
  const { session, socket, events } = running();
  socket.hear("no json", "[]", "null", "7", '{"type":7}', '{"no":"type"}');
  const warnings = events.filter(({ type }) => type === "warning").map(({ detail }) => detail.code);
  assert.deepEqual(warnings, Array(6).fill("malformed_message"));
  assert.equal(session.state.phase, "running");
  socket.hear({ type: "result" }, { type: "unheard_of" });
  assert.equal(session.state.chunksReceived, 1);
});

test("warnings of the server are passed on with their code", () => {
  const { session, socket, events } = running();
  socket.hear({ type: "warning", code: "context_nearly_full", message: "Soon." });
  assert.deepEqual(events.at(-1)?.detail, { code: "context_nearly_full", message: "Soon.", count: 1 });
  assert.ok(session.state.isContextNearlyFull);
});

test("a slow network costs pictures first, then the newest chunks, and both are told", () => {
  const { session, socket, events } = running();
  const [unit, picture] = [{ audio: SECOND }, "J".repeat(300_000)];
  assert.equal(session.sendPicture(picture), true);
  assert.equal(session.sendChunk(unit), "sent");
  const unitBytes = socket.sent.slice(-2).reduce((sum, message) => sum + JSON.stringify(message).length, 0);
  socket.bufferedAmount = Math.floor(unitBytes * 1.6);
  assert.equal(session.sendPicture(picture), false);
  assert.equal(session.sendChunk(unit), "sent");
  assert.equal(session.state.framesSent, 1);
  socket.bufferedAmount = unitBytes * 3 + 1;
  const { length } = socket.sent;
  assert.equal(session.sendChunk(unit), "upload_dropped");
  assert.equal(session.sendChunk(unit), "upload_dropped");
  assert.equal(socket.sent.length, length);
  socket.bufferedAmount = 0;
  assert.equal(session.sendChunk(unit), "sent");
  const warnings = events.filter(({ type }) => type === "warning").map(({ detail }) => [detail.code, detail.count]);
  assert.deepEqual(warnings, [
    ["frames_left_out", 1],
    ["upload_slow", 1],
    ["upload_slow", 2],
  ]);
  assert.equal(session.state.chunksUploadDropped, 2);
  assert.equal(session.state.chunksSent, 3);
});

test("gaps are told at most twice a second and in one message", () => {
  const { session, socket, clock } = running();
  const gap = (/** @type {number} */ gapIndex) => ({ gapIndex, gapMs: 20.4, totalShiftMs: 60 });
  for (let index = 0; index < 50; index += 1) session.noteGap(gap(index));
  assert.equal(socket.kinds.filter((kind) => kind === "client_diagnostic").length, 1);
  clock.atMs += 500;
  mock.timers.tick(500);
  const told = socket.sent.filter((message) => message.type === "client_diagnostic");
  assert.equal(told.length, 2);
  assert.deepEqual([told[1]?.metrics.gaps.length, told[1]?.metrics.gaps_left_out], [20, 29]);
  assert.ok(JSON.stringify(told[1]).length < 16 * 1024);
  assert.deepEqual(told[0]?.metrics.gaps[0], { gap_idx: 0, gap_ms: 20, total_shift_ms: 60, chunk_idx: null, turn: null });
});

test("leaving the page stops the session and closes the socket at once", () => {
  const { session, socket, page, ended } = running();
  page.leave();
  assert.equal(socket.last.type, "stop");
  assert.ok(socket.isClosedByClient);
  assert.deepEqual(
    ended().map(({ code }) => code),
    ["page_left"],
  );
  session.close();
  assert.equal(page.listeners, 0);
  assert.equal(ended().length, 1);
});

test("nothing runs on after the end", async () => {
  const { session, socket, player, events } = running();
  player.isDrained = false;
  session.pause();
  socket.vanish(1011, "worker_lost");
  await settle();
  const { length } = events;
  const { state } = session;
  mock.timers.tick(60_000);
  session.notePlayback({ aheadMs: 5 });
  session.noteGap({ gapIndex: 1, gapMs: 9, totalShiftMs: 9 });
  session.interrupt();
  session.resume();
  session.stop();
  assert.equal(events.length, length);
  assert.equal(session.state, state);
});
