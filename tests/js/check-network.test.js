import assert from "node:assert/strict";
import { test } from "node:test";

import { measureRoundTrips, measureSocket } from "../../static/check/devices.js";
import { medianOf } from "../../static/shared/async.js";

test("the median of an odd and an even number", () => {
  assert.equal(medianOf([30, 10, 20]), 20);
  assert.equal(medianOf([40, 10, 30, 20]), 25);
  assert.ok(Number.isNaN(medianOf([])));
});

test("ten calls, one after the other, and what failed is counted", async () => {
  let clockMs = 0;
  let calls = 0;
  /** @type {number[]} */
  const steps = [];
  const trips = await measureRoundTrips({
    now: () => clockMs,
    call: async () => {
      calls += 1;
      clockMs += calls === 4 ? 100 : 10;
      if (calls === 7) throw new Error("lost");
    },
    onStep: (done) => steps.push(done),
  });
  assert.deepEqual(trips, { medianMs: 10, worstMs: 100, failed: 1 });
  assert.deepEqual(steps, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
});

test("without any answer there is no median", async () => {
  const trips = await measureRoundTrips({ call: () => Promise.reject(new Error("gone")), now: () => 0 });
  assert.ok(Number.isNaN(trips.medianMs));
  assert.equal(trips.failed, 10);
});

/** A socket that does what it is told. */
class FakeSocket extends EventTarget {
  isClosed = false;
  readyState = 0;
  bufferedAmount = 0;
  close() {
    this.isClosed = true;
  }
}

test("the socket is closed as soon as it is open", async () => {
  const socket = new FakeSocket();
  let clockMs = 5;
  const measured = measureSocket({
    url: "ws://x",
    factory: () => /** @type {WebSocket} */ (/** @type {unknown} */ (socket)),
    now: () => clockMs,
  });
  clockMs = 30;
  socket.dispatchEvent(new Event("open"));
  assert.equal(await measured, 25);
  assert.ok(socket.isClosed);
});

test("a socket that is refused gives no time", async () => {
  const socket = new FakeSocket();
  const measured = measureSocket({ url: "ws://x", factory: () => /** @type {WebSocket} */ (/** @type {unknown} */ (socket)) });
  socket.dispatchEvent(Object.assign(new Event("close"), { code: 1006, reason: "" }));
  assert.equal(await measured, null);
});
