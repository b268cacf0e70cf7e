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
  assert.deepEqual(ownerHeaders("mine", storage), { "X-Session-Secret": SECRET });
  assert.equal(isOwnRecording("mine", storage), true);
  for (const id of ["too_early", "theirs"]) {
    assert.deepEqual(ownerHeaders(id, storage), {});
    assert.equal(isOwnRecording(id, storage), false);
  }
});

test("the newest two hundred are kept, and broken storage is no failure", () => {
  const storage = new FakeStorage();
  for (let i = 0; i < 205; i += 1) ownerNotes(storage)({ session_secret: SECRET, recording_session_id: `r${i}` });
  assert.deepEqual([isOwnRecording("r4", storage), isOwnRecording("r5", storage)], [false, true]);
  assert.deepEqual(ownerHeaders("r5", new FakeStorage({ minicpmo45_own_recordings: "{" })), {});
  ownerNotes()({ session_secret: SECRET, recording_session_id: "r" });
  assert.deepEqual(ownerHeaders("r"), {});
});
