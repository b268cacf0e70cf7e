/**
 * A turn-based conversation against a running system: two turns of which the second finds the
 * first in the cache, a lost socket, and the way over HTTP.
 */

import assert from "node:assert/strict";

import {
  addMessage,
  editMessage,
  emptyConversation,
  setSystem,
  textItem,
  toWire,
} from "../../../static/turnbased/conversation.js";
import { StreamingChat } from "../../../static/turnbased/streaming-chat.js";
import { turnOptions } from "../../../static/turnbased/turn.js";
import { floatsToBase64 } from "../../../static/shared/pcm.js";
import { ORIGIN, readSpeech, report, networkTo } from "./live-tools.mjs";

/** @import { ContentItem } from "../../../static/turnbased/conversation.js" */

/** @type {WebSocket[]} */
const sockets = [];
const chat = new StreamingChat({
  ...networkTo("streaming"),
  socketFactory: (url) => {
    const socket = new WebSocket(url);
    sockets.push(socket);
    return socket;
  },
});
let conversation = setSystem(emptyConversation(), [textItem("You are a helpful assistant.")], Date.now());
const settings = { hasVoice: true, maxNewTokens: 24 };
let sounds = 0;
chat.on("audio", () => (sounds += 1));

/** @param {ContentItem[]} items */
async function ask(items) {
  conversation = addMessage(conversation, { role: "user", items, createdAtMs: Date.now() }).conversation;
  const messages = toWire(conversation);
  let streamed = "";
  const off = chat.on("text", ({ delta }) => (streamed += delta));
  const result = await chat.send(messages, turnOptions(settings, messages));
  off();
  assert.equal(result.text, streamed, "the whole text is what was streamed");
  const added = addMessage(conversation, { role: "assistant", createdAtMs: Date.now() });
  conversation = editMessage(added.conversation, added.id, { items: [textItem(result.text)] });
  return result;
}

const question = floatsToBase64(readSpeech("speech_8s.wav"));
const first = await ask([{ type: "audio", data: question }]);
assert.equal(first.cachedTokens, 0);
assert.ok(first.text && sounds > 0 && first.ttftMs !== null);
const second = await ask([textItem("And what does that mean?")]);
assert.ok(second.cachedTokens > 0 && second.isCacheHit, "the second turn finds the first");
assert.ok(second.cachedTokens > second.inputTokens);

assert.equal(sockets.length, 1, "one socket for all turns");
sockets[0].close();
const afterLoss = await ask([textItem("Are you still there?")]);
assert.equal(sockets.length, 2);

const blocked = new StreamingChat({
  ...networkTo("streaming"),
  url: () => `${ORIGIN.replace(/^http/, "ws")}/nothing-here`,
  probe: async () => ({ isOnline: true, isReachable: true, isReady: true, isAppEnabled: true }),
});
const short = [{ role: "user", content: "Hello." }];
const overHttp = await blocked.send(short, turnOptions(settings, short));
assert.ok(overHttp.transport === "http" && overHttp.text && overHttp.wavBase64);
chat.close();
report({
  first: {
    cached: first.cachedTokens,
    input: first.inputTokens,
    ttftMs: Math.round(first.ttftMs),
    totalMs: Math.round(first.totalMs),
  },
  second: {
    cached: second.cachedTokens,
    input: second.inputTokens,
    ttftMs: Math.round(second.ttftMs),
    totalMs: Math.round(second.totalMs),
  },
  afterLoss: { cached: afterLoss.cachedTokens, hit: afterLoss.isCacheHit },
  overHttpMs: Math.round(Number(overHttp.totalMs)),
});
