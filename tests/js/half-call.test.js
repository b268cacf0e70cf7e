import assert from "node:assert/strict";
import { test } from "node:test";

import { halfDuplexCall } from "../../static/duplex/lib/call-kinds.js";
import { STATE_LOOKS, callStateOf, controlsFor } from "../../static/duplex/lib/call-state.js";
import { HALF_FIELDS, halfConfigOf } from "../../static/duplex/lib/call-settings.js";
import { HalfDuplexSession } from "../../static/duplex/lib/half-duplex-session.js";
import { SettingsStore } from "../../static/shared/settings-store.js";
import { QUEUE_DONE } from "./fakes/duplex-messages.js";
import { FakeClock, FakePage, collect, fakeSockets, settle } from "./fakes/socket.js";
import { FakeStorage } from "./fakes/storage.js";

/** @import { AudioPlayer } from "../../static/duplex/lib/audio-player.js" */
/** @import { Microphone } from "../../static/duplex/lib/capture.js" */

const PREPARED = { type: "prepared", session_id: "s", timeout_s: 180, recording_session_id: "rec_1" };
const GENERATING = { type: "generating", speech_duration_ms: 900 };
const PIECE = {
  type: "chunk",
  chunk_index: 0,
  text_delta: "Hi",
  audio_data: "AAAA",
  audio_sample_rate: 24_000,
  is_final: false,
  duration_ms: 40,
};

class FakeMicrophone extends EventTarget {
  isStarted = false;
  isClosed = false;
  /** @type {Float32Array[]} */
  recycled = [];
  start() {
    this.isStarted = true;
  }
  async close() {
    this.isClosed = true;
  }
  /** @param {Float32Array} audio */
  recycle(audio) {
    this.recycled.push(audio);
  }
  /** @param {string} type @param {unknown} [detail] */
  tell(type, detail = null) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

class FakePlayer extends EventTarget {
  isPlaying = false;
  isRunning = true;
  resumes = 0;
  /** @type {string[]} */
  done = [];
  async init() {
    this.done.push("init");
  }
  /** @param {string} id */
  async setSinkId(id) {
    this.done.push(`sink ${id}`);
    return true;
  }
  /** @param {number} turn */
  beginTurn(turn) {
    this.done.push(`turn ${turn}`);
  }
  playChunk() {
    this.done.push("chunk");
  }
  endTurn() {
    this.done.push("end");
  }
  flush() {
    this.done.push("flush");
  }
  resume() {
    this.resumes += 1;
  }
  skipToNow() {
    this.done.push("skip");
  }
  async stop() {
    this.done.push("stop");
  }
  outputRms() {
    return 0.2;
  }
}

/** @param {{devices?: {micId: string, speakerId: string}}} [given] */
function stage({ devices = { micId: "", speakerId: "" } } = {}) {
  const sockets = fakeSockets();
  const page = new FakePage();
  /** @type {FakeMicrophone[]} */
  const microphones = [];
  /** @type {FakePlayer[]} */
  const players = [];
  /** @type {() => void} */
  let ask = () => {};
  const asked = /** @type {Promise<void>} */ (new Promise((resolve) => (ask = resolve)));
  const door = { fail: /** @type {Error | null} */ (null), wait: /** @type {Promise<void> | null} */ (null), ask, asked };
  const awake = { released: 0 };
  const call = halfDuplexCall({
    parts: {
      keepAwake: () => ({ release: async () => void (awake.released += 1) }),
      onDeviceChange: () => {},
      openBargeIn: async () => assert.fail("half duplex has no barge-in"),
      openPlayer: async () => {
        players.push(new FakePlayer());
        return /** @type {AudioPlayer} */ (/** @type {unknown} */ (players.at(-1)));
      },
      openSession: async (options) =>
        new HalfDuplexSession({
          url: (id) => `ws://test/${id}`,
          socketFactory: sockets.factory,
          clock: new FakeClock(),
          visibility: page.source,
          probe: async () => assert.fail("no socket vanishes"),
          ...options,
        }),
    },
    settings: () => ({ playbackDelayMs: 200, speakerId: devices.speakerId }),
    openSource: async () => {
      door.ask();
      await door.wait;
      if (door.fail) throw door.fail;
      microphones.push(new FakeMicrophone());
      // The call uses these methods of a microphone and no others.
      return /** @type {Microphone} */ (/** @type {unknown} */ (microphones.at(-1)));
    },
  });
  const events = collect(call, "problem", "solved", "ended", "opened");
  return { call, sockets, microphones, players, door, events, page, awake };
}

async function talking() {
  const scene = stage();
  assert.equal(await scene.call.start({ system_prompt: "Hi" }), true);
  const socket = scene.sockets.last();
  socket.open();
  socket.hear(QUEUE_DONE, PREPARED);
  return { ...scene, socket, microphone: scene.microphones[0], player: scene.players[0] };
}

/** @param {{type: string, detail: any}[]} events any: as collected */
const problemsIn = (events) => events.filter(({ type }) => type === "problem").map(({ detail }) => detail.code);

test("sound flows from the microphone to the server and back to the speaker", async () => {
  const { call, socket, microphone, player } = await talking();
  assert.ok(microphone.isStarted);
  const audio = new Float32Array(8_000).fill(0.1);
  microphone.tell("chunk", { audio });
  assert.equal(socket.last.type, "audio_chunk");
  await settle();
  assert.deepEqual(microphone.recycled, [audio]);
  microphone.tell("level", { rms: 0.3 });
  assert.deepEqual(call.levels(), { inputRms: 0.3, outputRms: 0.2 });
  player.isPlaying = true;
  socket.hear(GENERATING, PIECE, { ...PIECE, chunk_index: 1, text_delta: "" });
  assert.deepEqual(player.done, ["init", "turn 0", "chunk", "chunk"]);
  const sent = socket.sent.length;
  microphone.tell("chunk", { audio });
  assert.equal(socket.sent.length, sent, "the microphone is closed during the answer");
  call.interrupt();
  assert.equal(player.done.at(-1), "flush");
  assert.equal(socket.last.type, "interrupt");
  call.session?.close();
});

test("a microphone that refuses is a problem with a next step, and nothing stays open", async () => {
  const { call, sockets, players, door, events } = stage();
  door.fail = Object.assign(new Error("no"), { code: "permission_denied" });
  assert.equal(await call.start({}), false);
  assert.deepEqual(problemsIn(events), ["permission_denied"]);
  assert.deepEqual(events[0].detail.steps, ["retry", "check"]);
  assert.equal(sockets.all.length, 0);
  assert.equal(players[0].done.at(-1), "stop");
  assert.equal(call.isActive, false);
  door.fail = null;
  assert.equal(await call.start({}), true);
  call.session?.close();
});

test("giving up while the browser still asks for the microphone opens no session", async () => {
  const { call, sockets, microphones, door, events } = stage();
  /** @type {() => void} */
  let allow = () => {};
  door.wait = new Promise((resolve) => (allow = resolve));
  const started = call.start({});
  assert.ok(call.isActive);
  await door.asked;
  call.stop();
  assert.equal(call.isActive, false);
  allow();
  assert.equal(await started, false);
  assert.ok(microphones[0].isClosed);
  assert.equal(sockets.all.length, 0);
  assert.deepEqual(problemsIn(events), []);
});

test("giving up before the player is there opens no device", async () => {
  const { call, microphones, players, events } = stage();
  const started = call.start({});
  call.stop();
  assert.equal(await started, false);
  assert.deepEqual(microphones, []);
  assert.deepEqual(
    players.flatMap(({ done }) => done),
    [],
  );
  assert.deepEqual(problemsIn(events), []);
});

test("a microphone that is unplugged can be taken up again in the same call", async () => {
  const { call, microphone, microphones, events } = await talking();
  microphone.tell("ended", Object.assign(new Error("gone"), { code: "unplugged" }));
  assert.deepEqual(problemsIn(events), ["unplugged"]);
  assert.ok(call.isActive);
  await call.reopenSource();
  assert.ok(microphones[1].isStarted && microphone.isClosed);
  assert.ok(events.some(({ type, detail }) => type === "solved" && detail.code === "unplugged"));
  call.session?.close();
});

test("a microphone that is chosen or appears while another one is being opened is the one that is used", async () => {
  for (const fails of [false, true]) {
    const { call, microphones, door } = await talking();
    /** @type {(() => void)[]} */ const answers = [];
    const wait = () => (door.wait = new Promise((resolve) => answers.push(resolve)));
    wait();
    const first = call.reopenSource();
    wait();
    const last = call.reopenSource();
    door.fail = fails ? Object.assign(new Error("none"), { code: "no_microphone" }) : null;
    answers[0]();
    await settle();
    door.fail = null;
    answers[1]();
    await Promise.all([first, last]);
    assert.deepEqual(
      microphones.map(({ isStarted, isClosed }) => [isStarted, isClosed]),
      fails
        ? [
            [true, true],
            [true, false],
          ]
        : [
            [true, true],
            [false, true],
            [true, false],
          ],
    );
    call.session?.close();
  }
});

test("a silent microphone is told and taken back", async () => {
  const { call, microphone, events } = await talking();
  microphone.tell("silent");
  microphone.tell("audible");
  assert.deepEqual(
    events.slice(1).map(({ type, detail }) => [type, detail.code]),
    [
      ["problem", "silent_microphone"],
      ["solved", "silent_microphone"],
    ],
  );
  call.session?.close();
});

test("a player that the browser has not let start is told, and plays nothing late", async () => {
  const { call, sockets, players, events } = stage();
  const started = call.start({});
  await settle();
  const [player] = players;
  assert.equal(player.resumes, 1, "with an open microphone the browser may let it play");
  player.isRunning = false;
  await started;
  sockets.last().open();
  sockets.last().hear(QUEUE_DONE, PREPARED);
  assert.deepEqual(problemsIn(events), ["sound_suspended"]);
  for (let time = 0; time < 2; time += 1) player.dispatchEvent(new CustomEvent("resumed"));
  assert.deepEqual(events.at(-1), { type: "solved", detail: { code: "sound_suspended" } });
  assert.deepEqual(player.done, ["init", "skip"]);
  call.session?.close();
});

test("mute keeps the sound back and the level down", async () => {
  const { call, socket, microphone } = await talking();
  microphone.tell("level", { rms: 0.3 });
  call.setMuted(true);
  const sent = socket.sent.length;
  microphone.tell("chunk", { audio: new Float32Array(8_000) });
  assert.equal(socket.sent.length, sent);
  assert.equal(call.levels().inputRms, 0);
  call.setMuted(false);
  microphone.tell("chunk", { audio: new Float32Array(8_000) });
  assert.equal(socket.sent.length, sent + 1);
  call.session?.close();
});

test("whatever ends the session closes the devices and says why", async () => {
  const { call, socket, microphone, player, events, awake } = await talking();
  socket.hear({ type: "timeout", elapsed_s: 180.2, reason: "inactivity" });
  await settle();
  assert.ok(microphone.isClosed);
  assert.equal(awake.released, 1);
  assert.equal(player.done.at(-1), "stop");
  assert.deepEqual(problemsIn(events), ["timeout"]);
  const ended = events.find(({ type }) => type === "ended");
  assert.equal(ended?.detail.state.recordingSessionId, "rec_1");
  assert.equal(call.isActive, false);
});

test("a call that is started while the last one's devices close keeps its own", async () => {
  const { call, socket, sockets, players, microphones } = await talking();
  /** @type {(value: void) => void} */ let finish = () => {};
  call.beforeClose(() => new Promise((resolve) => (finish = resolve)));
  socket.hear({ type: "timeout", elapsed_s: 180.2, reason: "inactivity" });
  const started = call.start({});
  await settle();
  finish();
  await settle();
  assert.equal(await started, true);
  assert.equal(sockets.all.length, 2);
  assert.deepEqual([microphones[0].isClosed, microphones[1].isClosed], [true, false]);
  assert.deepEqual(players[1].done, ["init"]);
  assert.ok(call.player && call.source);
  call.session?.close();
  finish();
});

test("the chosen speaker is used from the start", async () => {
  const { call, players } = stage({ devices: { micId: "m", speakerId: "s" } });
  await call.start({});
  assert.deepEqual(players[0].done, ["init", "sink s"]);
  call.session?.close();
});

test("every callState has a colour, and buttons follow the state", () => {
  for (const activity of /** @type {const} */ ([
    "none",
    "listening",
    "hearing",
    "thinking",
    "speaking",
    "interrupted",
    "settling",
  ])) {
    assert.ok(callStateOf({ phase: "running", activity }) in STATE_LOOKS);
  }
  const answer = controlsFor({ phase: "running", activity: "speaking" });
  assert.deepEqual([answer.canInterrupt, answer.canStop, answer.isTalk], [true, true, true]);
  assert.equal(controlsFor({ phase: "running", activity: "settling" }).canInterrupt, false);
});

test("settings: server, then the visitor, then a chosen preset", () => {
  const store = new SettingsStore("half", HALF_FIELDS, new FakeStorage());
  store.applyServer({ timeout_s: 240, vad_threshold: 0.7 });
  assert.equal(store.get("vad_threshold"), 0.7);
  store.set("vad_threshold", "0.5");
  store.applyServer({ timeout_s: 240, vad_threshold: 0.7 });
  assert.equal(store.get("vad_threshold"), 0.5);
  store.applyPreset({ vad_threshold: 0.9 });
  const config = halfConfigOf(store);
  assert.deepEqual(config, {
    vad: { threshold: 0.9, min_speech_duration_ms: 128, min_silence_duration_ms: 800, speech_pad_ms: 30 },
    generation: { max_new_tokens: 256, length_penalty: 1.1, temperature: 0.7 },
    tts: { enabled: true },
    session: { timeout_s: 240 },
  });
});
