import assert from "node:assert/strict";
import { test } from "node:test";

import { addRecent, clearRecent, listRecent } from "../../static/shared/memory.js";
import { FakeStorage } from "./fakes/storage.js";

const KEY = "minicpmo45_recent_sessions";
const NOON = new Date("2026-11-20T12:00:00Z");

test("the newest comes first, each recording once, at most twenty", () => {
  const storage = new FakeStorage();
  for (let i = 0; i < 25; i += 1) addRecent(`id_${i}`, "omni", storage, NOON);
  addRecent("id_20", "omni", storage, NOON);
  const ids = listRecent(storage).map((entry) => entry.id);
  assert.equal(ids.length, 20);
  assert.deepEqual(ids.slice(0, 3), ["id_20", "id_24", "id_23"]);
});

test("an entry is kept in the published shape", () => {
  const storage = new FakeStorage();
  addRecent("abc", "audio_duplex", storage, NOON);
  const kept = JSON.parse(storage.getItem(KEY) ?? "");
  assert.deepEqual(kept, [{ id: "abc", appType: "audio_duplex", savedAt: "2026-11-20T12:00:00.000Z" }]);
});

test("broken entries are left out", () => {
  const good = { id: "a", appType: "omni", savedAt: NOON.toISOString() };
  const kept = JSON.stringify([null, { id: 3 }, "x", good]);
  assert.deepEqual(listRecent(new FakeStorage({ [KEY]: kept })), [good]);
  assert.deepEqual(listRecent(new FakeStorage({ [KEY]: "{" })), []);
  assert.deepEqual(listRecent(new FakeStorage({ [KEY]: '{"a":1}' })), []);
});

test("clearing leaves nothing, and a full storage breaks nothing", () => {
  const storage = new FakeStorage();
  addRecent("abc", "omni", storage, NOON);
  clearRecent(storage);
  assert.deepEqual(listRecent(storage), []);
  storage.isFull = true;
  addRecent("abc", "omni", storage, NOON);
  assert.deepEqual(listRecent(storage), []);
});
