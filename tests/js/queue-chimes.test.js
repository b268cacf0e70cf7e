import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { createQueueChimes } from "../../static/duplex/lib/queue-chimes.js";

beforeEach(() => mock.timers.enable({ apis: ["setInterval"] }));
afterEach(() => mock.timers.reset());

/** An AudioContext that writes down what it would play. */
function fakeAudio() {
  const heard = { pitches: /** @type {number[]} */ ([]), contexts: 0, resumed: 0 };
  const parameter = { setValueAtTime() {}, linearRampToValueAtTime() {}, exponentialRampToValueAtTime() {} };
  function makeContext() {
    heard.contexts += 1;
    const context = {
      currentTime: 0,
      state: "suspended",
      destination: {},
      resume: async () => void (heard.resumed += 1),
      createGain: () => ({ gain: parameter, connect: (/** @type {object} */ to) => to }),
      createOscillator() {
        const tone = {
          type: "",
          frequency: { value: 0 },
          connect: (/** @type {object} */ to) => to,
          start: () => void heard.pitches.push(Math.round(tone.frequency.value)),
          stop() {},
        };
        return tone;
      },
    };
    return /** @type {AudioContext} */ (/** @type {unknown} */ (context));
  }
  return { heard, makeContext };
}

test("two notes come every two seconds while next in line, and only then", () => {
  const { heard, makeContext } = fakeAudio();
  const chimes = createQueueChimes({ makeContext });
  chimes.setPosition(2);
  assert.equal(heard.contexts, 0);
  chimes.setPosition(1);
  chimes.setPosition(1);
  mock.timers.tick(4_000);
  assert.deepEqual(heard.pitches, [880, 660, 880, 660, 880, 660]);
  chimes.setPosition(2);
  mock.timers.tick(10_000);
  assert.equal(heard.pitches.length, 6);
  assert.deepEqual([heard.contexts, heard.resumed], [1, 3]);
});

test("one's turn is an arpeggio, twice; ready is two short notes", () => {
  const { heard, makeContext } = fakeAudio();
  const chimes = createQueueChimes({ makeContext });
  chimes.setPosition(1);
  heard.pitches.length = 0;
  chimes.playTurn();
  assert.deepEqual(heard.pitches, [523, 659, 784, 1_047, 523, 659, 784, 1_047]);
  mock.timers.tick(10_000);
  assert.equal(heard.pitches.length, 8, "the loop has ended");
  chimes.playReady();
  assert.deepEqual(heard.pitches.slice(8), [1_047, 1_319]);
});

test("muted it makes no sound, and a page without sound goes on", () => {
  const { heard, makeContext } = fakeAudio();
  const chimes = createQueueChimes({ makeContext, isMuted: true });
  chimes.setPosition(1);
  chimes.playTurn();
  assert.equal(heard.contexts, 0);
  chimes.setMuted(false);
  chimes.playReady();
  assert.equal(heard.pitches.length, 2);
  createQueueChimes({
    makeContext: () => {
      throw new Error("no device");
    },
  }).playTurn();
});
