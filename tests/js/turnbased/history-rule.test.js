import assert from "node:assert/strict";
import { test } from "node:test";

import { MOST_BYTES, MOST_CONVERSATIONS, conversationsToDrop } from "../../../static/turnbased/history-store.js";

/** @param {number} count */
const kept = (count, sizeBytes = 1) => Array.from({ length: count }, (_, i) => ({ id: `c${i}`, updatedAtMs: i, sizeBytes }));

test("fifty are kept, the longest unused go", () => {
  assert.deepEqual(conversationsToDrop(kept(MOST_CONVERSATIONS), "c49"), []);
  assert.deepEqual(conversationsToDrop(kept(MOST_CONVERSATIONS + 2), "c51"), ["c1", "c0"]);
});

test("two hundred megabytes are kept", () => {
  const third = Math.ceil(MOST_BYTES / 3);
  assert.deepEqual(conversationsToDrop(kept(4, third), "c3"), ["c1", "c0"]);
});

test("the one in use stays, however old and large", () => {
  const all = [...kept(3), { id: "old", updatedAtMs: -1, sizeBytes: MOST_BYTES * 2 }];
  assert.deepEqual(conversationsToDrop(all, "old"), ["c2", "c1", "c0"]);
});

test("nothing older stays once something went", () => {
  const all = [
    { id: "new", updatedAtMs: 3, sizeBytes: 5 },
    { id: "big", updatedAtMs: 2, sizeBytes: 10 },
    { id: "small", updatedAtMs: 1, sizeBytes: 1 },
  ];
  assert.deepEqual(conversationsToDrop(all, "new", { mostCount: 9, mostBytes: 12 }), ["big", "small"]);
});
