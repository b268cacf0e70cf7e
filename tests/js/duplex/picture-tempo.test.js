import assert from "node:assert/strict";
import { test } from "node:test";

import { createPictureTaker } from "../../../static/duplex/lib/picture-taker.js";
import { PictureTempo, SentRate } from "../../../static/duplex/lib/picture-tempo.js";

test("one picture is due in each unit, in the middle of it", () => {
  const tempo = new PictureTempo(1_000);
  assert.equal(tempo.isDue(1_450), false);
  assert.equal(tempo.isDue(1_500), true);
  assert.equal(tempo.isDue(1_550), false);
  tempo.beginUnit(2_000);
  assert.equal(tempo.isDue(2_100), false);
  assert.equal(tempo.isDue(2_900), true);
});

test("the rate is that of the last ten seconds", () => {
  const rate = new SentRate();
  assert.equal(rate.rateHz, 0);
  for (let n = 1; n <= 5; n += 1) rate.note(n, n * 1_000);
  assert.equal(rate.rateHz, 1);
  for (let n = 6; n <= 30; n += 1) rate.note(n, 5_000 + (n - 5) * 500);
  assert.equal(rate.rateHz, 2);
  rate.note(0, 20_000); // another call
  assert.equal(rate.rateHz, 0);
});

const frame = { base64: "x", widthPx: 640, heightPx: 360, bytes: 10 };
const settled = () => new Promise((resolve) => setImmediate(resolve));

/** @param {boolean} isFile */
function scene(isFile) {
  let nowMs = 0;
  const source = new EventTarget();
  let grabbed = 0;
  const taker = createPictureTaker({
    grab: async () => ({ ...frame, base64: `picture ${(grabbed += 1)}` }),
    isFile: () => isFile,
    nowMs: () => nowMs,
  });
  taker.attach(source);
  return {
    taker,
    source,
    /** @param {number} ms */
    async at(ms) {
      nowMs = ms;
      source.dispatchEvent(new Event("level"));
      await settled();
    },
  };
}

test("a camera gives one picture for each chunk", async () => {
  const { taker, source, at } = scene(false);
  await at(400);
  assert.deepEqual(taker.take(), []);
  await at(800);
  await at(850);
  assert.deepEqual(taker.take(), ["picture 1"]);
  assert.deepEqual(taker.take(), []);
  source.dispatchEvent(new Event("chunk"));
  await at(1_600);
  assert.deepEqual(taker.take(), ["picture 2"]);
});

test("a file gives its pictures at its own instants", async () => {
  const { taker, source, at } = scene(true);
  await at(900);
  assert.deepEqual(taker.take(), []);
  source.dispatchEvent(new Event("frame-due"));
  await settled();
  assert.deepEqual(taker.take(), ["picture 1"]);
});

test("what was really sent is told, not what was taken", async () => {
  const { taker, at } = scene(false);
  await at(800);
  taker.take();
  assert.equal(taker.sent().frame, null);
  taker.noteSent(1);
  assert.equal(taker.sent().frame?.widthPx, 640);
  taker.clear();
  assert.deepEqual(taker.sent(), { rateHz: 0, frame: null });
});

test("a camera that goes away in the middle gives no picture and no error", async () => {
  const source = new EventTarget();
  const taker = createPictureTaker({ grab: () => Promise.reject(new Error("gone")), isFile: () => true });
  taker.attach(source);
  source.dispatchEvent(new Event("frame-due"));
  await settled();
  assert.deepEqual(taker.take(), []);
});

test("a picture that is not there yet is taken as soon as it is", async () => {
  const source = new EventTarget();
  /** @type {typeof frame | null} */
  let picture = null;
  const taker = createPictureTaker({ grab: async () => picture, isFile: () => true });
  taker.attach(source);
  source.dispatchEvent(new Event("frame-due"));
  await settled();
  assert.deepEqual(taker.take(), []);
  picture = frame;
  source.dispatchEvent(new Event("level"));
  await settled();
  assert.deepEqual(taker.take(), ["x"]);
  source.dispatchEvent(new Event("level"));
  await settled();
  assert.deepEqual(taker.take(), []);
});
