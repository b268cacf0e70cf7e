import assert from "node:assert/strict";
import { test } from "node:test";

import { uploadProblem, uploadType } from "../../static/shared/share-rules.js";

test("what recorders name is sent as what the server takes", () => {
  assert.equal(uploadType("video/webm;codecs=vp9,opus"), "video/webm");
  assert.equal(uploadType("audio/WAV"), "audio/wav");
  assert.equal(uploadType("audio/mp4"), "video/mp4");
  assert.equal(uploadType("text/html"), null);
  assert.equal(uploadType(""), null);
});

test("a file that is too big, empty or of another kind is not sent", () => {
  assert.equal(uploadProblem({ type: "audio/wav", size: 100 }, 100), null);
  assert.equal(uploadProblem({ type: "audio/wav", size: 101 }, 100), "size");
  assert.equal(uploadProblem({ type: "audio/wav", size: 0 }, 100), "size");
  assert.equal(uploadProblem({ type: "video/ogg", size: 10 }, 100), "kind");
});
