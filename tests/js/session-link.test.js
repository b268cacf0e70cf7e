import assert from "node:assert/strict";
import test, { mock } from "node:test";

import { openSessionLink } from "../../static/shared/live-socket.js";
import { fakeSockets } from "./fakes/socket.js";

const OFFER = { type: "session_resumable", session_id: "s", resume_token: "abc", grace_s: 60 };
const RESUMED = { type: "session_resumed", last_seq: 5, lost_messages: 0, away_ms: 10 };

/** A link whose session has come as far as message 3. */
function talking() {
  const sockets = fakeSockets();
  /** @type {string[]} */
  const heard = [];
  const link = openSessionLink({
    url: "ws://test/ws/duplex/s",
    socketFactory: sockets.factory,
    onMessage: (message) => heard.push(message.type),
    onConnection: (isThere) => heard.push(isThere ? "back" : "away"),
    onEnd: (reason) => heard.push(`end ${reason.code}`),
  });
  const socket = sockets.last();
  socket.open();
  socket.hear(OFFER, { type: "prepared", seq: 1 }, { type: "result", seq: 2 }, { type: "result", seq: 3 });
  heard.length = 0;
  return { link, sockets, socket, heard };
}

test("a session asks to be resumable, and comes back with what it has", () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { link, sockets, socket, heard } = talking();
  assert.equal(new URL(socket.url).search, "?resumable=1");
  socket.vanish();
  assert.equal(link.isOpen(), false);
  mock.timers.tick(200);
  const next = sockets.last();
  assert.equal(new URL(next.url).search, "?resume_token=abc&last_seq=3");
  next.open();
  assert.equal(link.isOpen(), false); // nothing is sent before the session goes on
  next.hear(OFFER, RESUMED, { type: "result", seq: 4 });
  assert.equal(link.isOpen(), true);
  assert.deepEqual(heard, ["away", "back", "result"]);
  mock.timers.reset();
});

test("it tries until the session is not kept any more, then says why it ended", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { sockets, heard } = talking();
  while (!heard.some((word) => word.startsWith("end")) && sockets.all.length < 1_000) {
    sockets.last().vanish();
    mock.timers.tick(2_000);
    await Promise.resolve();
  }
  assert.deepEqual(heard, ["away", "end server_gone"]);
  assert.ok(sockets.all.length >= 30 && sockets.all.length <= 33, String(sockets.all.length));
  mock.timers.reset();
});

test("an expired session, a goodbye and a taken-over socket end it at once", () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const expired = talking();
  expired.socket.vanish();
  mock.timers.tick(200);
  expired.sockets.last().hear({ type: "error", code: "session_expired", message: "gone" });
  assert.deepEqual(expired.heard, ["away", "end session_expired"]);
  for (const code of [1000, 1008, 4001]) {
    const { sockets, socket } = talking();
    socket.vanish(code);
    mock.timers.tick(60_000);
    assert.equal(sockets.all.length, 1);
  }
  mock.timers.reset();
});

test("a server that ends and does not start again is the reason", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { sockets, socket, heard } = talking();
  socket.hear({ type: "error", code: "shutting_down", message: "bye" });
  socket.vanish(1001);
  mock.timers.tick(200);
  mock.timers.tick(61_000);
  sockets.last().vanish();
  await Promise.resolve();
  assert.deepEqual(heard, ["away", "end shutting_down"]);
  mock.timers.reset();
});

test("who had not prepared yet is told to", () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { sockets, socket, heard } = talking();
  socket.vanish(1001);
  mock.timers.tick(200);
  sockets.last().hear({ ...RESUMED, last_seq: 0 });
  assert.deepEqual(heard, ["away", "back", "queue_done"]);
  mock.timers.reset();
});

test("who waited comes back to the newest place in the queue", () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { sockets, socket } = talking();
  socket.hear({ type: "queued", return_ticket: "1.2.a" }, { type: "queue_update", return_ticket: "1.5.b" });
  socket.vanish();
  mock.timers.tick(200);
  assert.equal(new URL(sockets.last().url).searchParams.get("ticket"), "1.5.b");
  mock.timers.reset();
});
