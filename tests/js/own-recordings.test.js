import assert from "node:assert/strict";
import { test } from "node:test";

import { isOwnRecording, ownerHeaders, ownerNotes } from "../../static/shared/memory.js";
import { FakeStorage } from "./fakes/storage.js";

const SECRET = "0123456789abcdef0123456789abcdef";

test("a recording is its browser's own by the secret its session was told", () => {
  const storage = new FakeStorage();
  const note = ownerNotes(storage);
  note({ type: "prefill_done", recording_session_id: "too_early" });
  note({ type: "queue_done", session_secret: SECRET });
  note({ type: "prepared", session_secret: null, recording_session_id: "mine" });
  assert.deepEqual(ownerHeaders(storage, "mine"), { "X-Session-Secret": SECRET });
  assert.equal(isOwnRecording(storage, "mine"), true);
  for (const id of ["too_early", "theirs"]) {
    assert.deepEqual(ownerHeaders(storage, id), {});
    assert.equal(isOwnRecording(storage, id), false);
  }
});

test("the newest two hundred are kept, and broken storage is no failure", () => {
  const storage = new FakeStorage();
  for (let i = 0; i < 205; i += 1) ownerNotes(storage)({ session_secret: SECRET, recording_session_id: `r${i}` });
  assert.deepEqual([isOwnRecording(storage, "r4"), isOwnRecording(storage, "r5")], [false, true]);
  assert.deepEqual(ownerHeaders(new FakeStorage({ minicpmo45_own_recordings: "{" }), "r5"), {});
  ownerNotes(undefined)({ session_secret: SECRET, recording_session_id: "r" });
  assert.deepEqual(ownerHeaders(undefined, "r"), {});
});
