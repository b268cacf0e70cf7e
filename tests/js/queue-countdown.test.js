import assert from "node:assert/strict";
import test from "node:test";

import { placeText, waitAfter, waitText } from "../../static/duplex/lib/queue-chimes.js";
import { setTexts } from "../../static/shared/texts.js";

setTexts("en", {
  "queue.next": "next",
  "queue.overtime": "{time} longer",
  "queue.place": "{position} of {length}",
  "queue.seconds.one": "{n} second",
  "queue.seconds.other": "{n} seconds",
  "queue.wait": "{time}",
});

/** @param {number} etaS @param {number} [position] */
const place = (etaS, position = 2) => ({ etaS, position, queueLength: 3 });

test("the shown wait never rises while the position stays", () => {
  let pick = 3;
  const random = () => (pick = (pick * 48_271) % 2_147_483_647) / 2_147_483_647;
  let wait = waitAfter(null, place(100), 0);
  for (let nowMs = 0; nowMs < 300_000; nowMs += 700) {
    const { endsAtMs } = wait;
    if (random() < 0.4) wait = waitAfter(wait, place(random() * 200), nowMs);
    assert.ok(wait.endsAtMs <= endsAtMs);
  }
});

test("a changed position may raise it", () => {
  const before = waitAfter(null, place(10), 0);
  assert.equal(waitText(waitAfter(before, place(60), 1_000), 1_000), "9 seconds");
  assert.equal(waitText(waitAfter(before, place(60, 3), 1_000), 1_000), "1:00");
  assert.equal(waitText(waitAfter(before, place(4), 1_000), 1_000), "4 seconds");
});

test("below zero is overtime", () => {
  const wait = waitAfter(null, place(2), 0);
  assert.equal(waitText(wait, 0), "2 seconds");
  assert.equal(waitText(wait, 1_001), "1 second");
  assert.equal(waitText(wait, 2_000), "0 seconds");
  assert.equal(waitText(wait, 5_500), "0:03 longer");
});

test("the place is never beyond the length of the queue", () => {
  assert.equal(placeText(place(0, 1)), "next");
  assert.equal(placeText(place(0)), "2 of 3");
  assert.equal(placeText(place(0, 5)), "5 of 5");
});
