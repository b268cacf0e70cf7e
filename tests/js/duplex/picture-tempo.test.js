import assert from "node:assert/strict";
import { test } from "node:test";

import { createRateCounter } from "../../../static/shared/async.js";
import { LEVELS_PER_S } from "../../../static/duplex/lib/capture-format.js";
import { AHEAD_MS, createPictureTaker } from "../../../static/duplex/lib/picture-taker.js";

const LEVEL_MS = 1_000 / LEVELS_PER_S;
const LEVELS_BEFORE = (1_000 - AHEAD_MS) / LEVEL_MS - 1;

test("the rate is that of the last pictures", () => {
  const count = createRateCounter();
  assert.equal(count(1_000).rate, 0);
  for (let n = 2; n <= 4; n += 1) count(n * 1_000);
  assert.equal(count(5_000).rate, 1);
  for (let n = 6; n <= 29; n += 1) count(5_000 + (n - 5) * 500);
  assert.equal(count(17_500).rate, 2);
});

const frame = { base64: "x", widthPx: 640, heightPx: 360, bytes: 10 };
const settled = () => new Promise((resolve) => setImmediate(resolve));

/** @param {boolean} isFile @param {() => Promise<typeof frame | null>} [grab] */
function scene(isFile, grab) {
  let nowMs = 0;
  const source = new EventTarget();
  /** @type {string[]} */
  const sent = [];
  const line = { isOpen: true };
  let grabbed = 0;
  const taker = createPictureTaker({
    grab: grab ?? (async () => ({ ...frame, base64: `picture ${(grabbed += 1)}` })),
    isFile: () => isFile,
    nowMs: () => nowMs,
  });
  taker.attach(source, (base64) => line.isOpen && sent.push(base64) > 0);
  const tell = async (/** @type {string} */ type) => {
    source.dispatchEvent(new Event(type));
    await settled();
  };
  return {
    taker,
    sent,
    line,
    tell,
    /** @param {number} count */
    async hear(count) {
      for (let level = 0; level < count; level += 1) await tell("level");
      nowMs += count * LEVEL_MS;
    },
  };
}

test("a camera gives one picture for each unit, ahead of its chunk", async () => {
  const { sent, tell, hear } = scene(false);
  await hear(LEVELS_BEFORE);
  assert.deepEqual(sent, []);
  await hear(1);
  assert.deepEqual(sent, ["picture 1"]);
  await hear(LEVELS_PER_S - LEVELS_BEFORE - 1);
  await tell("chunk");
  await hear(LEVELS_BEFORE);
  assert.deepEqual(sent, ["picture 1"]);
  await hear(1);
  assert.deepEqual(sent, ["picture 1", "picture 2"]);
});

test("a file gives its pictures at its own instants", async () => {
  const { sent, tell, hear } = scene(true);
  await hear(LEVELS_PER_S);
  assert.deepEqual(sent, []);
  await tell("frame-due");
  assert.deepEqual(sent, ["picture 1"]);
});

test("what was really sent is told, not what was taken", async () => {
  const { taker, line, tell, hear } = scene(false);
  line.isOpen = false;
  await hear(LEVELS_PER_S);
  assert.equal(taker.sent().frame, null);
  line.isOpen = true;
  await tell("chunk");
  await hear(LEVELS_PER_S);
  assert.equal(taker.sent().frame?.widthPx, 640);
  taker.clear();
  assert.deepEqual(taker.sent(), { rateHz: 0, frame: null });
});

test("a line that opens late gives the first unit its picture", async () => {
  const { sent, line, hear } = scene(false);
  line.isOpen = false;
  await hear(30);
  assert.deepEqual(sent, []);
  line.isOpen = true;
  await hear(20);
  assert.equal(sent.length, 1);
});

test("a chunk that is long in coming gets no second picture", async () => {
  const { sent, hear } = scene(false);
  await hear(3 * LEVELS_PER_S);
  assert.deepEqual(sent, ["picture 1"]);
});

test("a camera that goes away in the middle gives no picture and no error", async () => {
  const { sent, tell } = scene(true, () => Promise.reject(new Error("gone")));
  await tell("frame-due");
  assert.deepEqual(sent, []);
});

test("a picture that is not there yet is taken as soon as it is", async () => {
  /** @type {typeof frame | null} */
  let picture = null;
  const { sent, tell } = scene(true, async () => picture);
  await tell("frame-due");
  assert.deepEqual(sent, []);
  picture = frame;
  await tell("level");
  await tell("level");
  assert.deepEqual(sent, ["x"]);
});

test("a picture too late for its unit takes the place of the next one's", async () => {
  /** @type {((picture: typeof frame) => void)[]} */
  const shots = [];
  const { sent, tell } = scene(true, () => new Promise((resolve) => shots.push(resolve)));
  await tell("frame-due");
  await tell("chunk");
  shots.shift()?.({ ...frame, base64: "late" });
  await settled();
  await tell("frame-due");
  shots.shift()?.({ ...frame, base64: "its own" });
  await settled();
  assert.deepEqual(sent, ["late"], "two would be too much for one unit");
  await tell("chunk");
  await tell("frame-due");
  shots.shift()?.({ ...frame, base64: "the next" });
  await settled();
  assert.deepEqual(sent, ["late", "the next"]);
});
