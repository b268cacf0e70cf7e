import assert from "node:assert/strict";
import { test } from "node:test";

import { Emitter } from "../../../static/shared/async.js";
import { duplexCall } from "../../../static/duplex/lib/call-kinds.js";
import { CodedError } from "../../../static/shared/texts.js";
import { PREPARED, QUEUE_DONE, listens, queued } from "../fakes/duplex-messages.js";
import { stage } from "../fakes/duplex-stage.js";
import { settle } from "../fakes/socket.js";

/** @import { DuplexCallOptions } from "../../../types/duplex.js" */

/** @extends {Emitter<Record<string, any>>} `any`: no event of it is looked at */
class FakePlayer extends Emitter {
  isPlaying = false;
  isRunning = true;
  async init() {}
  async stop() {}
  flush() {}
  resume() {}
}

class FakeBargeIn extends EventTarget {
  isClosed = false;
  /** @type {unknown} */ source = null;
  setDetector() {}
  setEnabled() {}
  flush() {}
  /** @param {unknown} source */
  attach(source) {
    this.source = source;
  }
  close() {
    this.isClosed = true;
  }
}

class FakeMicrophone extends EventTarget {
  start() {}
  async close() {}
}

const SETTINGS = { playbackDelayMs: 200, speakerId: "", maxKvTokens: 0, isAutoPauseOn: true, isBargeInOn: true };

/** A call that connects, with a real session, whose microphone can be unplugged and plugged in again. */
async function connecting() {
  const { session, sockets, page } = stage();
  /** @type {FakeMicrophone[]} */ const microphones = [];
  let plugIn = () => {};
  const options = {
    parts: {
      openPlayer: async () => new FakePlayer(),
      openSession: async () => session,
      openBargeIn: async () => new FakeBargeIn(),
      keepAwake: () => ({ release: async () => {} }),
      onDeviceChange: (/** @type {() => void} */ listener) => (plugIn = listener),
    },
    settings: () => SETTINGS,
    openSource: async () => {
      microphones.push(new FakeMicrophone());
      return microphones.at(-1);
    },
  };
  const call = duplexCall(/** @type {DuplexCallOptions} */ (/** @type {unknown} */ (options)));
  await call.start({ systemPrompt: "" });
  const socket = sockets.last();
  socket.open();
  const microphone = () => /** @type {FakeMicrophone} */ (microphones.at(-1));
  const unplug = () => {
    microphone().dispatchEvent(new CustomEvent("ended", { detail: new CodedError("unplugged") }));
  };
  return { call, session, socket, page, microphone, unplug, plugIn: () => (plugIn(), settle()) };
}

async function talking() {
  const scene = await connecting();
  scene.socket.hear(QUEUE_DONE, PREPARED);
  return scene;
}

test("a microphone that is plugged in again resumes what its loss paused, and not what the user paused", async () => {
  const { session, socket, unplug, plugIn } = await talking();
  unplug();
  await plugIn();
  assert.deepEqual(socket.kinds.slice(-2), ["pause", "resume"]);
  socket.hear({ type: "resumed" });
  session.pause();
  unplug();
  await plugIn();
  assert.deepEqual(socket.kinds.slice(-2), ["resume", "pause"]);
  assert.equal(session.state.phase, "pausing");
  session.close();
});

test("a microphone that is plugged in again in a hidden page is not live before the page is visible", async () => {
  for (const isLostFirst of [true, false]) {
    const { session, socket, page, unplug, plugIn } = await talking();
    if (isLostFirst) unplug();
    page.set(true);
    if (!isLostFirst) unplug();
    await plugIn();
    assert.equal(socket.last.type, "pause");
    page.set(false);
    assert.equal(socket.last.type, "resume");
    session.close();
  }
});

test("a call that a hidden page paused does not resume without its microphone", async () => {
  for (const isResuming of [false, true]) {
    const { session, socket, page, unplug, plugIn } = await talking();
    page.set(true);
    socket.hear({ type: "paused", timeout: 60 });
    if (isResuming) page.set(false);
    unplug();
    page.set(false);
    if (isResuming) socket.hear({ type: "resumed" }); // of the resumption that was cancelled
    assert.equal(socket.last.type, "pause");
    assert.notEqual(session.state.phase, "running");
    assert.equal(session.state.isAutoPaused, false);
    await plugIn();
    assert.equal(socket.last.type, "resume");
    session.close();
  }
});

test("a call whose microphone was unplugged in the queue is paused once it is prepared", async () => {
  const { session, socket, unplug, plugIn } = await connecting();
  socket.hear(queued(1));
  unplug();
  socket.hear(QUEUE_DONE, PREPARED);
  assert.equal(socket.last.type, "pause");
  await plugIn();
  assert.equal(socket.last.type, "resume");
  session.close();
});

test("a picture chosen during a pause is sent once the call continues", async () => {
  const { call, session, socket, page } = await talking();
  let shown = 0;
  page.set(true); // as the file chooser of a phone does
  socket.hear({ type: "paused", timeout: 60 });
  page.set(false);
  call.kind.showPicture("AAAA", () => (shown += 1));
  assert.equal(shown, 0);
  socket.hear({ type: "resumed" });
  assert.deepEqual(socket.last, { type: "video_frame", frame: "AAAA" });
  call.kind.showPicture("BBBB", () => (shown += 1));
  assert.deepEqual([socket.last.frame, shown], ["BBBB", 2]);
  session.close();
});

test("a file's call ends although the server did not report each chunk that it dropped", async (context) => {
  const { session, socket, microphone } = await talking();
  const audio = () => ({ detail: { audio: new Float32Array(16_000) } });
  for (let count = 0; count < 3; count += 1) microphone().dispatchEvent(new CustomEvent("chunk", audio()));
  socket.hear({ type: "warning", code: "late_chunk" }, listens());
  context.mock.timers.enable({ apis: ["setInterval"] });
  microphone().dispatchEvent(new CustomEvent("ended", { detail: null }));
  context.mock.timers.tick(10_000);
  assert.notEqual(socket.last.type, "stop");
  context.mock.timers.tick(10_000);
  assert.equal(socket.last.type, "stop");
  session.close();
});

test("the barge-in of a cancelled start never takes the place of the next call's", async () => {
  /** @type {FakeBargeIn[]} */ const made = [];
  /** @type {(() => void)[]} */ const finish = [];
  const options = {
    parts: {
      openPlayer: async () => new FakePlayer(),
      openSession: async () => Object.assign(new EventTarget(), { on: () => () => {}, isActive: false, start: () => "" }),
      openBargeIn: async () => {
        await new Promise((resolve) => finish.push(() => resolve(null)));
        made.push(new FakeBargeIn());
        return made.at(-1);
      },
      keepAwake: () => ({ release: async () => {} }),
      onDeviceChange: () => {},
    },
    settings: () => ({ playbackDelayMs: 200, speakerId: "", maxKvTokens: 0, isAutoPauseOn: true, isBargeInOn: true }),
    openSource: async () => Object.assign(new EventTarget(), { start: () => {}, close: async () => {} }),
  };
  const call = duplexCall(/** @type {DuplexCallOptions} */ (/** @type {unknown} */ (options)));
  void call.start({ systemPrompt: "" });
  await settle();
  call.stop();
  void call.start({ systemPrompt: "" });
  await settle();
  const [first, second] = finish;
  second();
  await settle();
  first();
  await settle();
  assert.deepEqual(
    made.map(({ source }) => source === call.source && source !== null),
    [true, false],
  );
  call.stop();
  await settle();
  assert.equal(made[0].isClosed, true);
});
