import assert from "node:assert/strict";
import { test } from "node:test";

import { kindOfFile, mediaProblem, videoPictures } from "../../../static/turnbased/attachments.js";
import { fitsRequest, mediaLimits } from "../../../static/turnbased/conversation.js";

const MIB = 1024 * 1024;
const limits = mediaLimits({ chat_message_bytes: 64 * MIB, chat_audio_max_s: 600 });

test("the kind comes from the type, else from the name", () => {
  assert.equal(kindOfFile({ name: "a.bin", type: "image/png" }), "image");
  assert.equal(kindOfFile({ name: "A.MP3", type: "" }), "audio");
  assert.equal(kindOfFile({ name: "film.mkv", type: "application/octet-stream" }), "video");
  assert.equal(kindOfFile({ name: "notes.txt", type: "text/plain" }), null);
  assert.equal(kindOfFile({ name: "noending", type: "" }), null);
});

test("what fits into one message as Base64 bounds the files", () => {
  assert.equal(limits.audioMaxS, 600);
  assert.ok(limits.videoMaxBytes < 48 * MIB && limits.videoMaxBytes > 47 * MIB);
  assert.equal(limits.imageMaxBytes, 20 * MIB);
  const small = mediaLimits({ chat_message_bytes: MIB });
  assert.ok(small.imageMaxBytes < MIB * 0.75);
  assert.ok(small.audioMaxS < 12);
});

test("each limit has its own name", () => {
  assert.equal(mediaProblem({ kind: "image", sizeBytes: 0 }, limits), "empty");
  assert.equal(mediaProblem({ kind: "audio", sizeBytes: 1, durationS: 600 }, limits), null);
  assert.equal(mediaProblem({ kind: "audio", sizeBytes: 1, durationS: 601 }, limits), "audio_long");
  assert.equal(mediaProblem({ kind: "video", sizeBytes: 49 * MIB }, limits), "video_big");
  assert.equal(mediaProblem({ kind: "video", sizeBytes: 1, durationS: 601 }, limits), "video_long");
  assert.equal(mediaProblem({ kind: "image", sizeBytes: 21 * MIB }, limits), "image_big");
  assert.equal(mediaProblem({ kind: "image", sizeBytes: 1, widthPx: 17_000, heightPx: 1 }, limits), "image_pixels");
  assert.equal(mediaProblem({ kind: "image", sizeBytes: 1, widthPx: 9_000, heightPx: 9_000 }, limits), "image_pixels");
  assert.equal(mediaProblem({ kind: "image", sizeBytes: 1, widthPx: 8_000, heightPx: 8_000 }, limits), null);
});

test("the whole conversation counts", () => {
  assert.equal(fitsRequest(limits.requestMaxBytes - 4, 4, limits), true);
  assert.equal(fitsRequest(limits.requestMaxBytes - 4, 8, limits), false);
});

test("a video is looked at once a second, and at most 64 times", () => {
  assert.equal(videoPictures(3, 1), 4);
  assert.equal(videoPictures(0, 1), 1);
  assert.equal(videoPictures(600, 1), 64);
  assert.equal(videoPictures(600, 2), 128);
});
