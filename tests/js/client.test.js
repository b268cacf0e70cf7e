import assert from "node:assert/strict";
import test from "node:test";

import { Client, SessionEndedError, encodeWav, play, readWav } from "../../static/client/index.js";
import { fakeSockets, settle } from "./fakes/socket.js";

const RATE_HZ = 16_000;
const PREPARED = { type: "prepared", prompt_length: 0, prompt_tokens: 0, session_id: "s", chunk_ms: 1_000, max_kv_tokens: 8_192 };
/** @param {number} step */
const result = (step) => ({ type: "result", step, is_listen: step === 0, text: step === 0 ? "" : "Hi.", audio_data: "" });

/** A recording that is played, up to the first second on its way. */
async function playing() {
  const sockets = fakeSockets();
  const session = new Client("https://here:8006/any").duplex({ withPictures: true, socketFactory: sockets.factory });
  const events = play(session, new Float32Array(RATE_HZ + 1), { pictures: ["AAAA"], restS: 0 });
  const first = events.next();
  const socket = sockets.last();
  socket.open();
  socket.hear({ type: "queue_done" }, PREPARED);
  await settle();
  return { events, first, socket, sockets };
}

test("a recording is played second by second, with its pictures", async () => {
  const { events, first, socket } = await playing();
  assert.match(socket.url, /^wss:\/\/here:8006\/ws\/duplex\/omni_/);
  assert.deepEqual(socket.kinds, ["prepare", "video_frame", "audio_chunk"]);
  socket.hear(result(0));
  assert.equal((await first).value?.result.is_listen, true);
  const second = events.next();
  await settle();
  assert.equal(socket.kinds.length, 4);
  socket.hear(result(1));
  assert.equal((await second).value?.result.text, "Hi.");
  assert.equal((await events.next()).done, true);
  assert.equal(socket.isClosedByClient, true);
});

test("a recording begins once the session is prepared, also over another socket", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const sockets = fakeSockets();
  const session = new Client("https://here:8006").duplex({ socketFactory: sockets.factory });
  const first = play(session, new Float32Array(RATE_HZ), { restS: 0 }).next();
  sockets.last().open();
  sockets.last().hear({ type: "session_resumable", resume_token: "abc", grace_s: 60 }, { type: "queue_done" });
  sockets.last().vanish(1001);
  context.mock.timers.tick(200);
  sockets.last().open();
  sockets.last().hear({ type: "session_resumed", last_seq: 0, lost_messages: 0, away_ms: 10 });
  await settle();
  sockets.last().hear(PREPARED);
  await settle();
  assert.deepEqual(sockets.last().kinds, ["prepare", "audio_chunk"]);
  sockets.last().hear(result(0));
  assert.equal((await first).value?.result.step, 0);
  session.close();
});

test("an error of the server ends it with its code", async () => {
  const { first, socket } = await playing();
  socket.hear({ type: "error", code: "context_full", message: "Full.", error: "Full.", fatal: true });
  await assert.rejects(first, (error) => error instanceof SessionEndedError && error.reason.code === "context_full");
});

test("chat and half duplex talk to the same server", () => {
  const client = new Client("http://here");
  for (const [session, path] of /** @type {const} */ ([
    ["chat", "streaming"],
    ["halfDuplex", "half_duplex"],
  ])) {
    const sockets = fakeSockets();
    if (session === "chat") {
      const chat = client.chat({ socketFactory: sockets.factory });
      chat.send([{ role: "user", content: "Hello" }], { prefill: {}, generate: {} }).catch(() => {});
    } else client.halfDuplex({ socketFactory: sockets.factory }).start({});
    assert.ok(sockets.last().url.startsWith(`ws://here/ws/${path}/`), sockets.last().url);
  }
  assert.throws(() => new Client("here"), TypeError);
});

test("a server under a path is asked there, for everything", async (context) => {
  const asked = /** @type {string[]} */ ([]);
  context.mock.method(globalThis, "fetch", async (/** @type {string} */ url) => {
    asked.push(url);
    return Response.json({ success: true, text: "Hi.", ready: true, apps: [] });
  });
  const sockets = fakeSockets();
  const client = new Client(new URL("https://here:8006/omni/?a=b#c"));
  const session = client.duplex({ socketFactory: sockets.factory });
  session.start({ systemPrompt: "" });
  assert.match(sockets.last().url, /^wss:\/\/here:8006\/omni\/ws\/duplex\/adx_/);
  sockets.last().vanish(1006);
  await settle();
  const turn = client.chat({ socketFactory: sockets.factory }).send([{ role: "user", content: "Hello" }]);
  assert.match(sockets.last().url, /^wss:\/\/here:8006\/omni\/ws\/streaming\//);
  sockets.last().vanish(1006);
  await turn.catch(() => {});
  await settle();
  assert.ok(asked.length > 0);
  for (const url of asked) assert.ok(url.startsWith("https://here:8006/omni/"), url);
});

test("a page's client talks to the page's own server, whatever the page's path", (context) => {
  Object.assign(globalThis, { location: new URL("https://here/docs/page/") });
  context.after(() => Reflect.deleteProperty(globalThis, "location"));
  const sockets = fakeSockets();
  new Client().halfDuplex({ socketFactory: sockets.factory }).start({});
  assert.ok(sockets.last().url.startsWith("wss://here/ws/half_duplex/"), sockets.last().url);
});

test("a recording that is paused on a result goes on after the pause", async () => {
  const sockets = fakeSockets();
  const session = new Client("http://here").duplex({ socketFactory: sockets.factory });
  const events = play(session, new Float32Array(2 * RATE_HZ), { restS: 0 });
  const first = events.next();
  const socket = sockets.last();
  socket.open();
  socket.hear({ type: "queue_done" }, PREPARED);
  await settle();
  socket.hear(result(0));
  await first;
  session.pause();
  const second = events.next();
  await settle();
  socket.hear({ type: "paused", timeout: 60 });
  session.resume();
  await settle();
  assert.deepEqual(socket.kinds, ["prepare", "audio_chunk", "pause", "resume"]);
  socket.hear({ type: "resumed" });
  await settle();
  assert.equal(socket.kinds.at(-1), "audio_chunk");
  socket.hear(result(1));
  assert.equal((await second).value?.result.step, 1);
  await events.return();
});

test("a chat needs no options", async () => {
  const sockets = fakeSockets();
  const turn = new Client("http://here").chat({ socketFactory: sockets.factory }).send([{ role: "user", content: "Hello" }]);
  sockets.last().open();
  sockets.last().hear({ type: "queue_done" }, { type: "prefill_done" }, { type: "done", text: "Hi." });
  assert.equal((await turn).text, "Hi.");
  assert.deepEqual(sockets.last().kinds, ["prefill", "generate"]);
});

test("a WAV file is read if the server can hear it", () => {
  const samples = Float32Array.of(0, 0.5, -1);
  assert.deepEqual(
    readWav(encodeWav(samples, RATE_HZ)).map((sample) => Math.round(sample * 100) / 100),
    samples,
  );
  assert.throws(() => readWav(encodeWav([samples, samples], 44_100)), /2 channels, 44100 Hz; the server hears/);
  for (const file of [new Uint8Array(0), new TextEncoder().encode("RIFF0000WAVE"), encodeWav(samples, RATE_HZ).subarray(0, 40)])
    assert.throws(() => readWav(file), RangeError);
});
