import assert from "node:assert/strict";
import test from "node:test";

import {
  addMessage,
  canAnswer,
  deleteMessage,
  editMessage,
  emptyConversation,
  findMessage,
  isSendKey,
  messageTextOf,
  setSystem,
  textItem,
  toWire,
  truncateAfter,
} from "../../static/turnbased/conversation.js";

/** @import { ChatMessage, Conversation } from "../../types/chat.js" */

/** @param {Conversation} conversation @param {ChatMessage["role"]} role @param {string} text */
function said(conversation, role, text) {
  return addMessage(conversation, { role, items: [textItem(text)], createdAtMs: 1 }).conversation;
}

const talk = () => said(said(said(emptyConversation(), "user", "One?"), "assistant", "1"), "user", "Two?");

test("ids are never used twice, not even after deleting", () => {
  let conversation = talk();
  conversation = deleteMessage(conversation, "m3");
  const { id } = addMessage(conversation, { role: "user", createdAtMs: 1 });
  assert.equal(id, "m4");
});

test("a conversation is replaced, never changed", () => {
  const before = talk();
  const copy = structuredClone(before);
  editMessage(before, "m1", { items: [textItem("Other?")] });
  truncateAfter(before, "m1");
  deleteMessage(before, "m1");
  assert.deepEqual(before, copy);
});

test("beginning again from a message keeps what came before it", () => {
  assert.deepEqual(
    truncateAfter(talk(), "m2").messages.map(({ id }) => id),
    ["m1", "m2"],
  );
  const same = talk();
  assert.equal(truncateAfter(same, "m9"), same);
});

test("an answer goes back byte for byte as it was streamed", () => {
  const pieces = ["  Hé", "llo\r\n", "\t", "e\u0301 \ud83d\ude00", " ", "\u200b\n\n"];
  let { conversation, id } = addMessage(said(emptyConversation(), "user", "Hi"), {
    role: "assistant",
    status: "pending",
    createdAtMs: 1,
  });
  conversation = editMessage(conversation, id, { items: [textItem(pieces.join(""))] });
  const message = /** @type {ChatMessage} */ (findMessage(conversation, id));
  assert.equal(messageTextOf(message), pieces.join(""));
  assert.equal(toWire(conversation)[1]?.content, pieces.join(""));
});

test("on the wire one text is a text, and media keep their order without empty texts", () => {
  const conversation = addMessage(said(emptyConversation(), "user", "Only text"), {
    role: "user",
    items: [textItem(""), { type: "image", data: "AA==" }, textItem("What is this?"), { type: "audio", data: "AAAA" }],
    createdAtMs: 1,
    extra: { transcript: "a cat" },
  }).conversation;
  assert.deepEqual(toWire(conversation), [
    { role: "user", content: "Only text" },
    { role: "user", content: [{ type: "image", data: "AA==" }, textItem("What is this?"), { type: "audio", data: "AAAA" }] },
  ]);
});

test("what has no content stays at home", () => {
  let conversation = said(emptyConversation(), "user", "Hi");
  conversation = addMessage(conversation, { role: "assistant", status: "failed", createdAtMs: 1 }).conversation;
  conversation = said(conversation, "user", "");
  assert.equal(toWire(conversation).length, 1);
  assert.ok(canAnswer(conversation));
  assert.ok(!canAnswer(said(conversation, "assistant", "Hello")));
  assert.ok(!canAnswer(emptyConversation()));
});

test("there is one system message and it comes first", () => {
  let conversation = setSystem(talk(), [textItem("Be kind.")], 1);
  conversation = setSystem(conversation, [textItem("Be brief.")], 2);
  assert.deepEqual(toWire(conversation)[0], { role: "system", content: "Be brief." });
  assert.equal(conversation.messages.filter(({ role }) => role === "system").length, 1);
  assert.equal(setSystem(conversation, [textItem("")], 3).messages.length, 3);
});

test("Enter sends, unless it breaks the line or chooses a character of an input method", () => {
  const enter = { key: "Enter", shiftKey: false, isComposing: false, keyCode: 13 };
  assert.ok(isSendKey(enter));
  for (const other of [{ key: "a" }, { shiftKey: true }, { isComposing: true }, { keyCode: 229 }]) {
    assert.ok(!isSendKey({ ...enter, ...other }), JSON.stringify(other));
  }
});
