import assert from "node:assert/strict";
import { test } from "node:test";

import * as msgpack from "@msgpack/msgpack";

import { bytesToBase64, encodeWav, floatsToBase64 } from "../../../static/shared/pcm.js";
import { CodedError } from "../../../static/shared/texts.js";
import { addMessage, emptyConversation, mediaOf, toFacts, toItems, toWire } from "../../../static/turnbased/conversation.js";
import { fromFile, toJson, toMsgpack } from "../../../static/turnbased/transfer.js";

/** @import { MediaPart } from "../../../types/chat.js" */

const NOW_MS = Date.UTC(2026, 0, 2);
const sound = {
  type: "audio",
  data: floatsToBase64(Float32Array.of(0, 0.5, -0.5, 0.25)),
  mimeType: "",
  name: "hum.wav",
  durationS: 0.1,
};
const picture = {
  type: "image",
  data: bytesToBase64(Uint8Array.of(1, 2, 3)),
  mimeType: "image/png",
  name: "a.png",
  widthPx: 4,
  heightPx: 2,
};
const film = {
  type: "video",
  data: bytesToBase64(Uint8Array.of(9, 8)),
  mimeType: "video/webm",
  name: "f.webm",
  durationS: 3,
  poster: "AAAA",
};
const library = async () => msgpack;
const wav = encodeWav(Float32Array.of(0.1, 0.2, 0.3), 24_000);

function conversation() {
  const media = /** @type {MediaPart[]} */ ([sound, picture, film]);
  let { conversation: made } = addMessage(emptyConversation(), {
    role: "system",
    items: [{ type: "text", text: "Be kind." }],
    createdAtMs: NOW_MS,
    extra: { names: [""] },
  });
  ({ conversation: made } = addMessage(made, {
    role: "user",
    items: toItems("What is this?", media, 2),
    createdAtMs: NOW_MS,
    extra: { media: toFacts(media) },
  }));
  ({ conversation: made } = addMessage(made, {
    role: "assistant",
    items: toItems(" It is *fine*.\n", []),
    status: "stopped",
    createdAtMs: NOW_MS,
    extra: { figures: { totalMs: 5, tokenStats: { total_tokens: 7 } }, voice: { wav: new Blob([wav]), durationS: 3 / 24_000 } },
  }));
  return made;
}

test("JSON brings everything back, so that the server's cache still fits", async () => {
  const before = conversation();
  const text = await toJson(before, "A title", new Date(NOW_MS));
  const { conversation: after, title } = await fromFile(new TextEncoder().encode(text), 0, library);
  assert.equal(title, "A title");
  assert.deepEqual(toWire(after), toWire(before));
  assert.deepEqual(after.messages.map(mediaOf), before.messages.map(mediaOf));
  assert.deepEqual(
    after.messages.map(({ status, createdAtMs }) => [status, createdAtMs]),
    [
      ["done", NOW_MS],
      ["done", NOW_MS],
      ["stopped", NOW_MS],
    ],
  );
  assert.deepEqual(after.messages[2].extra.figures, { totalMs: 5, tokenStats: { total_tokens: 7 } });
  const { wav: kept } = /** @type {{wav: Blob}} */ (after.messages[2].extra.voice);
  assert.deepEqual(new Uint8Array(await kept.arrayBuffer()), wav);
});

test("MessagePack holds files and can be read again", async () => {
  const packed = await toMsgpack(conversation(), msgpack);
  const { conversation: after } = await fromFile(packed, NOW_MS, library);
  assert.deepEqual(
    after.messages.map(({ role }) => role),
    ["system", "user", "assistant"],
  );
  assert.deepEqual(
    after.messages[1].items.map(({ type }) => type),
    ["audio", "image", "video", "text"],
  );
  const [heard, seen, watched] = mediaOf(after.messages[1]);
  assert.equal(seen.data, picture.data);
  assert.equal(seen.mimeType, "image/png");
  assert.equal(watched.name, "f.webm");
  assert.equal(heard.data.length, sound.data.length); // 16-bit on the way: close, not the same
  assert.equal(after.messages[2].extra.voice?.wav.size, wav.length);
  assert.deepEqual(after.messages[2].items, [{ type: "text", text: " It is *fine*.\n" }]);
});

test("a plain list of messages is enough", async () => {
  const file = new TextEncoder().encode('{"messages":[{"role":"user","content":"Hi"}]}');
  const { conversation: made } = await fromFile(file, NOW_MS, library);
  assert.deepEqual(toWire(made), [{ role: "user", content: "Hi" }]);
});

test("other files are refused with a reason", async () => {
  const cases = {
    "not json": "not_a_chat",
    "{}": "not_a_chat",
    '{"messages":[{"role":"robot","content":"x"}]}': "not_a_chat",
    '{"messages":[{"role":"user","content":[{"type":"image","data":"!"}]}]}': "not_a_chat",
    '{"messages":[{"role":"user","content":[{"type":"virus"}]}]}': "not_a_chat",
    '{"format":"minicpmo-live-chat","version":99,"messages":[]}': "newer_version",
  };
  for (const [text, code] of Object.entries(cases)) {
    const isRight = (/** @type {unknown} */ error) => error instanceof CodedError && error.code === code;
    await assert.rejects(fromFile(new TextEncoder().encode(text), 0, library), isRight, text);
  }
});
