import assert from "node:assert/strict";
import { test } from "node:test";

import { Emitter } from "../../../static/shared/async.js";
import { duplexCall } from "../../../static/duplex/lib/call-kinds.js";
import { settle } from "../fakes/socket.js";

/** @import { DuplexCallOptions } from "../../../types/duplex.js" */

/** @extends {Emitter<Record<string, any>>} `any`: no event of it is looked at */
class FakePlayer extends Emitter {
  async init() {}
  async stop() {}
}

class FakeBargeIn extends EventTarget {
  isClosed = false;
  /** @type {unknown} */ source = null;
  setDetector() {}
  setEnabled() {}
  /** @param {unknown} source */
  attach(source) {
    this.source = source;
  }
  close() {
    this.isClosed = true;
  }
}

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
