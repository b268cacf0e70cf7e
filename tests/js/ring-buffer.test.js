import assert from "node:assert/strict";
import { test } from "node:test";

import { RingBuffer } from "../../static/duplex/lib/resampler.js";

/** @param {RingBuffer} ring @param {number} count */
function take(ring, count) {
  const target = new Float32Array(count);
  return [...target.subarray(0, ring.read(target, count))];
}

test("samples leave in the order they came, over the seam too", () => {
  const ring = new RingBuffer(4);
  ring.write(Float32Array.of(1, 2, 3));
  assert.deepEqual(take(ring, 2), [1, 2]);
  ring.write(Float32Array.of(4, 5, 6));
  assert.equal(ring.lengthSamples, 4);
  assert.deepEqual(take(ring, 9), [3, 4, 5, 6]);
  assert.equal(ring.droppedSamples, 0);
});

test("overflow drops the oldest and counts them", () => {
  const ring = new RingBuffer(3);
  ring.write(Float32Array.of(1, 2));
  ring.write(Float32Array.of(3, 4));
  assert.deepEqual(take(ring, 3), [2, 3, 4]);
  assert.equal(ring.droppedSamples, 1);
});

test("a write longer than the ring keeps its end", () => {
  const ring = new RingBuffer(2);
  ring.write(Float32Array.of(9));
  ring.write(Float32Array.of(1, 2, 3, 4));
  assert.deepEqual(take(ring, 2), [3, 4]);
  assert.equal(ring.droppedSamples, 3);
});

test("only the counted part of a source is written", () => {
  const ring = new RingBuffer(4);
  ring.write(Float32Array.of(1, 2, 3), 2);
  assert.deepEqual(take(ring, 4), [1, 2]);
});

test("clear forgets", () => {
  const ring = new RingBuffer(2);
  ring.write(Float32Array.of(1));
  ring.clear();
  assert.equal(ring.lengthSamples, 0);
});

test("a ring without room is refused", () => {
  assert.throws(() => new RingBuffer(0), RangeError);
});
