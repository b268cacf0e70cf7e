import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { PREPARED, QUEUE_DONE, listens, queued } from "./fakes/duplex-messages.js";
import { START, running, stage } from "./fakes/duplex-stage.js";
import { settle } from "./fakes/socket.js";

const UNIT = { audio: new Float32Array(1) };
const OFFER = { type: "session_resumable", session_id: "s", resume_token: "abc", grace_s: 60 };
const RESUMED = { type: "session_resumed", last_seq: 5, lost_messages: 0, away_ms: 10 };

beforeEach(() => mock.timers.enable({ apis: ["setTimeout", "setInterval"] }));
afterEach(() => mock.timers.reset());

/** What a page is told of the connection. @param {ReturnType<typeof stage>["events"]} events */
const told = (events) =>
  events.flatMap(({ type, detail }) => {
    if (type === "ended") return [`end ${detail.reason.code}`];
    return type === "warning" || type === "result" ? [detail.code ?? type] : [];
  });

/** A session that has come as far as message 3. */
function talking() {
  const scene = running();
  scene.socket.hear(OFFER, { ...listens(), seq: 2 }, { ...listens(), seq: 3 });
  scene.events.length = 0;
  return scene;
}

test("a session asks to be resumable, and comes back with what it has", () => {
  const { session, sockets, socket, events } = talking();
  assert.equal(new URL(socket.url).search, "?resumable=1");
  socket.vanish();
  assert.equal(session.sendChunk(UNIT), "not_running");
  assert.equal(session.state.isLost, true);
  mock.timers.tick(200);
  const next = sockets.last();
  assert.equal(new URL(next.url).search, "?resume_token=abc&last_seq=3");
  next.open();
  assert.equal(session.sendChunk(UNIT), "not_running"); // nothing is sent before the session goes on
  next.hear(OFFER, RESUMED, { ...listens(), seq: 4 });
  assert.equal(session.sendChunk(UNIT), "sent");
  assert.equal(session.state.isLost, false);
  assert.deepEqual(told(events), ["reconnecting", "reconnected", "result"]);
});

test("it tries until the session is not kept any more, then says why it ended", async () => {
  const { session, sockets, clock, server, events } = talking();
  server.isReachable = false;
  while (!told(events).some((word) => word.startsWith("end")) && sockets.all.length < 1_000) {
    sockets.last().vanish();
    clock.atMs += 2_000;
    mock.timers.tick(2_000);
    await settle();
  }
  assert.deepEqual(told(events), ["reconnecting", "end server_gone"]);
  assert.equal(session.state.isLost, false);
  assert.ok(sockets.all.length >= 30 && sockets.all.length <= 33, String(sockets.all.length));
});

test("an expired session, a goodbye and a taken-over socket end it at once", () => {
  const expired = talking();
  expired.socket.vanish();
  mock.timers.tick(200);
  expired.sockets.last().hear({ type: "error", code: "session_expired", message: "gone" });
  assert.deepEqual(told(expired.events), ["reconnecting", "end session_expired"]);
  for (const code of [1000, 1008, 4001]) {
    const { sockets, socket } = talking();
    socket.vanish(code);
    mock.timers.tick(60_000);
    assert.equal(sockets.all.length, 1);
  }
});

test("a server that ends and does not start again is the reason", () => {
  const { sockets, socket, clock, events } = talking();
  socket.hear({ type: "error", code: "shutting_down", message: "bye" });
  socket.vanish(1001);
  mock.timers.tick(200);
  clock.atMs += 61_000;
  sockets.last().vanish();
  assert.deepEqual(told(events), ["reconnecting", "end shutting_down"]);
});

test("a worker that ends is the reason, not that nobody keeps its session", () => {
  const { sockets, socket, events } = talking();
  socket.hear({ type: "error", code: "shutting_down", message: "bye" });
  socket.vanish(1001);
  mock.timers.tick(200);
  sockets.last().hear({ type: "error", code: "session_expired", message: "gone" });
  assert.deepEqual(told(events), ["reconnecting", "end shutting_down"]);
});

test("who had not prepared yet is told to", () => {
  const { session, sockets } = stage();
  session.start(START);
  sockets.last().open();
  sockets.last().hear(OFFER);
  sockets.last().vanish(1001);
  mock.timers.tick(200);
  sockets.last().open();
  sockets.last().hear({ ...RESUMED, last_seq: 0 });
  assert.deepEqual(sockets.last().kinds, ["prepare"]);
});

test("a `prepare` that may be lost with its socket is sent again", () => {
  const { session, sockets, events } = stage();
  session.start(START);
  sockets.last().open();
  sockets.last().hear(OFFER, QUEUE_DONE);
  assert.deepEqual(sockets.last().kinds, ["prepare"]);
  sockets.last().hear(QUEUE_DONE); // another worker takes over: the gateway still has it
  assert.deepEqual(sockets.last().kinds, ["prepare"]);
  sockets.last().vanish(1001);
  mock.timers.tick(200);
  sockets.last().open();
  sockets.last().hear({ ...RESUMED, last_seq: 0 }, { type: "warning", code: "already_prepared" }, PREPARED);
  assert.deepEqual(sockets.last().kinds, ["prepare"]);
  assert.equal(session.state.phase, "running");
  assert.deepEqual(told(events), ["reconnecting", "reconnected"]);
});

test("a warning that came before `prepared` does not keep `prepare` from being sent again", () => {
  const { session, sockets } = stage();
  session.start(START);
  sockets.last().open();
  sockets.last().hear(OFFER, QUEUE_DONE, { type: "warning", code: "unknown_type", message: "", seq: 1 });
  sockets.last().vanish(1001);
  mock.timers.tick(200);
  sockets.last().open();
  sockets.last().hear({ ...RESUMED, last_seq: 1 });
  assert.deepEqual(sockets.last().kinds, ["prepare"]);
  sockets.last().hear({ ...PREPARED, seq: 2 });
  assert.equal(session.state.phase, "running");
});

test("who waited comes back to the newest place in the queue", () => {
  const { session, sockets } = stage();
  session.start(START);
  const ticket = (/** @type {string} */ place) => ({ ...queued(1), return_ticket: place });
  sockets.last().hear(OFFER, ticket("1.2.a"), { ...ticket("1.5.b"), type: "queue_update" });
  sockets.last().vanish();
  mock.timers.tick(200);
  assert.equal(new URL(sockets.last().url).searchParams.get("ticket"), "1.5.b");
});

test("the state of a server asked about a lost socket says nothing of the session after it", async () => {
  const { session, socket, sockets, events } = running();
  socket.vanish(1006);
  session.stop();
  session.start(START);
  sockets.last().open();
  sockets.last().hear(QUEUE_DONE, PREPARED);
  await settle();
  assert.equal(session.state.phase, "running");
  assert.deepEqual(told(events), ["end stopped"]);
});

test("a session that is left while its socket is lost is stopped once the server is reached", () => {
  const { session, sockets, socket, events } = talking();
  socket.vanish();
  session.stop();
  assert.deepEqual(told(events), ["reconnecting", "end stopped"]);
  mock.timers.tick(200);
  sockets.last().vanish();
  mock.timers.tick(500);
  const stopper = sockets.last();
  assert.equal(new URL(stopper.url).search, "?resume_token=abc&last_seq=3");
  stopper.open();
  assert.deepEqual(stopper.kinds, []); // what is sent before the session goes on is dropped
  stopper.hear(OFFER, RESUMED, { ...listens(), seq: 4 });
  assert.deepEqual(stopper.kinds, ["stop"]);
  stopper.hear({ type: "stopped" });
  mock.timers.tick(60_000);
  assert.equal(sockets.last(), stopper);
  assert.equal(session.state.phase, "ended");
});

test("it stops trying once the server keeps no session any more", () => {
  const { session, sockets, socket } = talking();
  socket.vanish();
  session.stop();
  for (let tries = 0; tries < 100; tries += 1) {
    sockets.last().vanish();
    mock.timers.tick(2_000);
  }
  assert.ok(sockets.all.length > 30 && sockets.all.length < 50, String(sockets.all.length));
});
