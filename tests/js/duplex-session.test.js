import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { PREPARED, QUEUE_DONE, listens, part, queued, speaks } from "./fakes/duplex-messages.js";
import { START, running, stage } from "./fakes/duplex-stage.js";

const SECOND = new Float32Array(16_000);

beforeEach(() => mock.timers.enable({ apis: ["setTimeout", "setInterval"] }));
afterEach(() => mock.timers.reset());

test("prepare goes out once, after queue_done, with the settings of the page", () => {
  const { session, sockets, events } = stage();
  const sessionId = session.start(START);
  assert.match(sessionId, /^adx_[a-z0-9]+_[0-9a-f]{6}$/);
  const socket = sockets.last();
  assert.ok(new URL(socket.url).pathname.endsWith(sessionId));
  socket.open();
  assert.deepEqual(socket.sent, []);
  socket.hear(queued(2), QUEUE_DONE);
  assert.deepEqual(socket.sent, [
    { early_audio: true, type: "prepare", prefix_system_prompt: "Be kind.", config: { length_penalty: 1.05 } },
  ]);
  socket.hear(PREPARED);
  assert.deepEqual(
    events.map(({ type }) => type),
    ["queue", "queue", "queuedone", "prepared"],
  );
  assert.equal(events[0]?.detail.position, 2);
  assert.equal(events[1]?.detail, null);
  assert.equal(session.state.phase, "running");
});

test("starting twice starts once", () => {
  const { session, sockets } = stage();
  assert.equal(session.start(START), session.start(START));
  assert.equal(sockets.all.length, 1);
});

test("a chunk before the session runs, and after it, is left out", () => {
  const { session, sockets } = stage();
  assert.equal(session.sendChunk({ audio: SECOND }), "not_running");
  session.start(START);
  sockets.last().open();
  assert.equal(session.sendChunk({ audio: SECOND }), "not_running");
  assert.deepEqual(sockets.last().sent, []);
});

test("pictures go ahead of their chunk as messages of their own", () => {
  const { session, sockets } = stage();
  assert.equal(session.sendPicture("JPEG"), false, "nobody is there yet");
  session.start(START);
  const socket = sockets.last();
  socket.open();
  socket.hear(QUEUE_DONE, PREPARED);
  assert.equal(session.sendPicture("JPEG"), true);
  assert.deepEqual(socket.last, { type: "video_frame", frame: "JPEG" });
  session.sendChunk({ audio: SECOND });
  assert.deepEqual(
    socket.sent.slice(-2).map(({ type }) => type),
    ["video_frame", "audio_chunk"],
  );
  assert.equal(session.state.framesSent, 1);
  assert.equal(session.state.chunksSent, 1);
  session.pause();
  assert.equal(session.sendPicture("JPEG"), false);
});

test("chunks are numbered and carry sound and switches", () => {
  const { session, socket, clock } = running();
  assert.equal(session.sendChunk({ audio: SECOND, maxSliceNums: 2 }), "sent");
  session.setForceListen(true);
  session.sendChunk({ audio: SECOND });
  const [first, second] = socket.sent.slice(-2);
  assert.equal(first?.audio.length, 85_336); // Base64 of 64 000 bytes
  assert.equal(first?.max_slice_nums, 2);
  assert.equal(first?.client_ts, clock.unixMs() / 1_000);
  assert.deepEqual([first?.seq, second?.seq], [0, 1]);
  assert.equal(first?.force_listen, undefined);
  assert.equal(second?.force_listen, true);
});

test("what the model says is to be played, with the bounds of its turns", () => {
  const { socket, events } = running();
  socket.hear(speaks("Once", { step: 0 }), speaks("upon", { step: 1, end_of_turn: true }), listens({ step: 2 }));
  const spoken = events.filter(({ type }) => type === "speak").map(({ detail }) => detail);
  assert.deepEqual(
    spoken.map((detail) => [detail.text, detail.isTurnStart, detail.isTurnEnd]),
    [
      ["Once", true, false],
      ["upon", false, true],
    ],
  );
  assert.equal(spoken[0].sampleRateHz, 24_000);
  assert.equal(events.filter(({ type }) => type === "turnend").length, 1);
  assert.equal(events.filter(({ type }) => type === "result").length, 3);
});

test("sound that comes ahead is played at once and begins the turn", () => {
  const { session, socket, events, clock } = running();
  socket.hear(listens({ step: 0 }));
  clock.atMs += 300;
  socket.hear(part({ step: 1 }));
  assert.equal(session.state.ttfsMs, 300);
  clock.atMs += 200;
  socket.hear(speaks("Once", { step: 1 }), part({ step: 2 }), speaks("upon", { step: 2, end_of_turn: true }));
  const spoken = events.filter(({ type }) => type === "speak").map(({ detail }) => detail);
  assert.deepEqual(
    spoken.map((detail) => [detail.text, detail.step, detail.isTurnStart, detail.isTurnEnd]),
    [
      ["", 1, true, false],
      ["Once", 1, false, false],
      ["", 2, false, false],
      ["upon", 2, false, true],
    ],
  );
  assert.equal(session.state.ttfsMs, 300, "counted once");
  assert.equal(session.state.turnCount, 1);
  assert.equal(events.filter(({ type }) => type === "result").length, 3);
});

test("sound that comes ahead is thrown away until the model has listened", () => {
  const { session, socket, events } = running();
  socket.hear(speaks("Once"));
  session.interrupt();
  socket.hear(part({ step: 1 }), speaks("upon", { step: 1 }), listens({ barge_in: true }), part({ step: 3 }));
  assert.deepEqual(
    events.filter(({ type }) => type === "speak").map(({ detail }) => detail.step),
    [0, 3],
  );
});

test("a barge-in found by the server flushes the playback", () => {
  const { socket, events } = running();
  socket.hear(speaks("Once"), listens({ barge_in: true }));
  assert.deepEqual(
    events.filter(({ type }) => type === "flush").map(({ detail }) => detail.cause),
    ["barge_in"],
  );
});

test("an interruption is silent at once and stays so until the model has listened", () => {
  const { session, socket, events } = running();
  socket.hear(speaks("Once"));
  session.interrupt();
  assert.equal(socket.last.type, "interrupt");
  assert.deepEqual(events.at(-1)?.detail, { cause: "interrupt" });
  socket.hear(speaks("upon", { step: 1 }), { type: "interrupted" }, listens({ step: 2, barge_in: true }));
  socket.hear(speaks("Sorry?", { step: 3, turn_id: 1 }));
  const spoken = events.filter(({ type }) => type === "speak").map(({ detail }) => detail.text);
  assert.deepEqual(spoken, ["Once", "Sorry?"]);
});

test("force listen flushes and mutes", () => {
  const { session, socket, events } = running();
  socket.hear(speaks("Once"));
  session.setForceListen(true);
  session.setForceListen(true);
  socket.hear(speaks("upon"));
  assert.deepEqual(events.filter(({ type }) => type === "flush").length, 1);
  assert.equal(events.filter(({ type }) => type === "speak").length, 1);
});

test("a pause waits for the server and for the player", () => {
  const { session, socket, player } = running();
  player.isDrained = false;
  session.pauseToggle();
  assert.equal(socket.last.type, "pause");
  assert.equal(session.state.phase, "pausing");
  assert.equal(session.sendChunk({ audio: SECOND }), "not_running");
  socket.hear({ type: "paused", timeout: 60 });
  mock.timers.tick(300);
  assert.equal(session.state.phase, "pausing");
  player.isDrained = true;
  mock.timers.tick(100);
  assert.equal(session.state.phase, "paused");
  session.pauseToggle();
  assert.equal(socket.last.type, "resume");
  assert.equal(session.state.phase, "paused");
  socket.hear({ type: "resumed" });
  assert.equal(session.state.phase, "running");
  assert.equal(session.sendChunk({ audio: SECOND }), "sent");
});

test("a drained player does not hurry the server", () => {
  const { session, socket } = running();
  session.pause();
  mock.timers.tick(1_000);
  assert.equal(session.state.phase, "pausing");
  socket.hear({ type: "paused", timeout: 60 });
  assert.equal(session.state.phase, "paused");
});

test("a hidden page pauses, a seen one resumes; a pause by hand stays", () => {
  const { session, socket, page } = running();
  page.set(true);
  assert.equal(session.state.phase, "pausing");
  socket.hear({ type: "paused", timeout: 60 });
  page.set(false);
  socket.hear({ type: "resumed" });
  assert.equal(session.state.phase, "running");
  session.pause();
  socket.hear({ type: "paused", timeout: 60 });
  page.set(true);
  page.set(false);
  assert.equal(session.state.phase, "paused");
  assert.deepEqual(socket.kinds.slice(1), ["pause", "resume", "pause"]);
});

test("a page hidden while it waited pauses as soon as it is ready", () => {
  const { session, sockets, page } = stage();
  session.start(START);
  page.set(true);
  sockets.last().open();
  sockets.last().hear(QUEUE_DONE, PREPARED);
  assert.equal(session.state.phase, "pausing");
});

test("a page that is hidden again before it has resumed stays paused", () => {
  const { session, socket, page } = running();
  page.set(true);
  socket.hear({ type: "paused", timeout: 60 });
  page.set(false);
  page.set(true);
  socket.hear({ type: "resumed" }, { type: "paused", timeout: 60 });
  assert.deepEqual(socket.kinds.slice(-3), ["pause", "resume", "pause"]);
  assert.equal(session.state.phase, "paused");
  page.set(false);
  socket.hear({ type: "resumed" });
  assert.equal(session.state.phase, "running");
});

test("without the setting a hidden page goes on", () => {
  const { session, page } = running({ isAutoPauseOn: () => false });
  page.set(true);
  assert.equal(session.state.phase, "running");
});

/** @param {(session: ReturnType<typeof running>) => void} before @param {(session: ReturnType<typeof running>) => void} whileAway */
function afterReturn(before, whileAway) {
  const scene = running();
  scene.socket.hear({ type: "session_resumable", session_id: "s", resume_token: "abc", grace_s: 60 });
  before(scene);
  scene.socket.vanish();
  whileAway(scene);
  mock.timers.tick(200);
  const socket = scene.sockets.last();
  socket.open();
  socket.hear({ type: "session_resumed", last_seq: 1, lost_messages: 0, away_ms: 200 });
  return { ...scene, socket };
}

test("a page that is seen again while its socket is lost resumes on the next one", () => {
  const { session, socket } = afterReturn(
    ({ page, socket }) => {
      page.set(true);
      socket.hear({ type: "paused", timeout: 60 });
    },
    ({ page }) => page.set(false),
  );
  assert.deepEqual(socket.kinds, ["resume"]);
  socket.hear({ type: "resumed" });
  assert.equal(session.state.phase, "running");
});

test("typed text is not sent, and so kept, until the server has resumed the session", () => {
  const { session, sockets, socket } = running();
  socket.hear({ type: "session_resumable", session_id: "s", resume_token: "abc", grace_s: 60 });
  socket.vanish();
  assert.equal(session.sendText("hello"), false);
  mock.timers.tick(200);
  const next = sockets.last();
  next.open();
  assert.equal(session.sendText("hello"), false);
  assert.deepEqual(next.kinds, []);
  next.hear({ type: "session_resumed", last_seq: 1, lost_messages: 0, away_ms: 200 });
  assert.equal(session.sendText("hello"), true);
  assert.equal(next.last.text, "hello");
});

test("an interruption that the server may not have got is repeated until it listens", () => {
  const speaking = (/** @type {ReturnType<typeof running>} */ { socket }) => socket.hear(speaks("a"));
  const lost = afterReturn(speaking, ({ session }) => session.interrupt());
  assert.deepEqual(lost.socket.kinds, ["interrupt"]);
  const heard = afterReturn(
    (scene) => {
      speaking(scene);
      scene.session.interrupt();
      scene.socket.hear(listens());
    },
    () => {},
  );
  assert.deepEqual(heard.socket.kinds, []);
});

test("chunks that were lost with a socket are not waited for", () => {
  const { session, socket, clock } = afterReturn(
    ({ session }) => [1, 2, 3].forEach(() => session.sendChunk({ audio: SECOND })),
    () => {},
  );
  socket.hear({ ...listens({ wall_clock_ms: 70 }), seq: 1 }); // missed while there was no socket
  clock.atMs += 1_000;
  session.sendChunk({ audio: SECOND });
  clock.atMs += 100;
  socket.hear(listens({ wall_clock_ms: 1_500 })); // of a unit that was running all the time
  assert.equal(session.state.activity, "thinking");
  socket.hear(listens({ wall_clock_ms: 70 }));
  assert.equal(session.state.chunksServerDropped, 1);
  session.sendChunk({ audio: SECOND });
  assert.equal(session.state.activity, "listening");
});

test("a pause that the server may not have got is repeated, and so is its end", () => {
  const paused = afterReturn(
    () => {},
    ({ session }) => session.pause(),
  );
  assert.deepEqual(paused.socket.kinds, ["pause"]);
  paused.socket.hear({ type: "paused", timeout: 60 });
  assert.equal(paused.session.state.phase, "paused");
  const both = afterReturn(
    () => {},
    ({ session }) => {
      session.pause();
      session.resume();
    },
  );
  assert.deepEqual(both.socket.kinds, ["pause", "resume"]);
  both.socket.hear({ type: "paused", timeout: 60 }, { type: "resumed" });
  assert.equal(both.session.state.phase, "running");
});

test("another socket hears of no pause that was answered, or never asked for", () => {
  const asked = (/** @type {ReturnType<typeof running>} */ { session, socket }) => {
    session.pause();
    socket.hear({ type: "paused", timeout: 60 });
  };
  for (const before of [asked, () => {}]) assert.deepEqual(afterReturn(before, () => {}).socket.kinds, []);
});
