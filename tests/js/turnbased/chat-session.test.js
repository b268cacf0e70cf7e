import assert from "node:assert/strict";
import { test } from "node:test";

import { Emitter } from "../../../static/shared/async.js";
import { bytesToBase64, encodeWav, floatsToBase64 } from "../../../static/shared/pcm.js";
import { ChatSession } from "../../../static/turnbased/chat-session.js";
import { emptyConversation, messageTextOf, titleOf, toWire } from "../../../static/turnbased/conversation.js";
import { forgetfulHistory, openHistory } from "../../../static/turnbased/history-store.js";
import { TurnError } from "../../../static/turnbased/streaming-chat.js";
import { beginTurn } from "../../../static/turnbased/turn.js";
import { FakeIndexedDb } from "../fakes/indexed-db.js";

/** @import { ChatSettings } from "../../../static/turnbased/turn.js" */
/** @import { StreamingChatEvents } from "../../../static/turnbased/streaming-chat.js" */

/** Answers when told to. @extends {Emitter<StreamingChatEvents>} */
class FakeChat extends Emitter {
  /** @type {unknown[]} */ sent = [];
  resets = 0;
  /** @type {(result: unknown) => void} */ resolve = () => {};
  /** @type {(error: unknown) => void} */ reject = () => {};

  /** @param {unknown} messages @param {unknown} options */
  send(messages, options) {
    this.sent.push({ messages, options });
    return new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
  }
  stop() {}
  reset() {
    this.resets += 1;
  }
  /** @param {string} text */
  write(text) {
    this.emit("progress", { ...beginTurn("s", 0), phase: "generating", text });
  }
}

/** @param {Partial<ChatSettings>} [settings] */
function setUp(settings) {
  const chat = new FakeChat();
  /** @type {Map<string, any>} */
  const kept = new Map();
  /** @type {Set<string>} */
  const slow = new Set();
  /** @type {Set<string>} */
  const unreadable = new Set();
  const store = {
    ...forgetfulHistory(),
    /** @param {{id: string}} head @param {unknown} body */
    write: async (head, body) => (kept.set(head.id, { head, body }), head),
    /** @param {string} id */
    read: async (id) => {
      if (slow.has(id)) await settle();
      if (unreadable.has(id)) throw new DOMException("The file is damaged.", "DataError");
      return kept.get(id)?.body ?? null;
    },
  };
  let clockMs = 1_000;
  const session = new ChatSession({
    chat: /** @type {any} */ (chat), // only what a session uses
    store: /** @type {any} */ (store),
    settings: () => ({ isStreaming: true, ...settings }),
    nowMs: () => clockMs++,
  });
  return { chat, session, kept, slow, unreadable };
}

const settle = () => new Promise((resolve) => setImmediate(resolve));
/** @param {ChatSession} session */
const texts = (session) => session.conversation.messages.map((message) => `${message.role}: ${messageTextOf(message)}`);

/** @param {Pick<ReturnType<typeof setUp>, "chat" | "session">} scene @param {string} question @param {string} answer */
async function exchange({ chat, session }, question, answer) {
  assert.equal(session.ask(question, []), true);
  await settle();
  chat.write(answer);
  chat.resolve({ ...beginTurn("s", 0), text: answer });
  await settle();
}

test("a question is answered piece by piece and both are kept", async () => {
  const scene = setUp();
  const { chat, session, kept } = scene;
  session.ask("Hello", []);
  await settle();
  assert.deepEqual(/** @type {any} */ (chat.sent[0]).messages, [{ role: "user", content: "Hello" }]);
  assert.equal(session.isBusy, true);
  chat.write(" Hi");
  assert.deepEqual(texts(session), ["user: Hello", "assistant:  Hi"]);
  chat.resolve({ ...beginTurn("s", 0), text: " Hi!" });
  await settle();
  assert.equal(session.isBusy, false);
  assert.deepEqual(toWire(session.conversation), [
    { role: "user", content: "Hello" },
    { role: "assistant", content: " Hi!" },
  ]);
  assert.equal(kept.get(session.head.id).head.title, "Hello");
});

test("without streaming nothing is shown before it is whole", async () => {
  const { chat, session } = setUp({ isStreaming: false });
  session.ask("Hello", []);
  await settle();
  chat.write("Half");
  assert.deepEqual(texts(session), ["user: Hello", "assistant: "]);
});

test("nothing empty is asked, and nothing while an answer comes", async () => {
  const { session } = setUp();
  assert.equal(session.ask("  ", []), false);
  session.ask("One", []);
  assert.equal(session.ask("Two", []), false);
});

test("a changed question replaces all after it, and can be taken back", async () => {
  const scene = setUp();
  const { session } = scene;
  await exchange(scene, "One", "First");
  await exchange(scene, "Two", "Second");
  session.askInstead(session.conversation.messages[0].id, "Uno", []);
  await settle();
  assert.deepEqual(texts(session), ["user: Uno", "assistant: "]);
  session.undo();
  assert.deepEqual(texts(session), ["user: One", "assistant: First", "user: Two", "assistant: Second"]);
  assert.equal(session.isBusy, false);
  await settle();
  assert.equal(session.canUndo, false);
});

test("a question goes with its answer, an answer alone", async () => {
  const scene = setUp();
  const { session } = scene;
  await exchange(scene, "One", "First");
  await exchange(scene, "Two", "Second");
  session.remove(session.conversation.messages[3].id);
  assert.deepEqual(texts(session), ["user: One", "assistant: First", "user: Two"]);
  assert.equal(session.isUnanswered, true);
  session.remove(session.conversation.messages[0].id);
  assert.deepEqual(texts(session), ["user: Two"]);
});

test("an answer that fails keeps the question and says why", async () => {
  const { chat, session } = setUp();
  session.ask("Hello", []);
  await settle();
  const reason = { code: "worker_lost", detail: "", message: "gone", isByUser: false, canRestart: true };
  chat.reject(new TurnError(/** @type {any} */ (reason), { ...beginTurn("s", 0), text: "Half" }));
  await settle();
  const [question, answer] = session.conversation.messages;
  assert.equal(messageTextOf(question), "Hello");
  assert.equal(answer.status, "failed");
  assert.deepEqual(answer.extra.problem, { code: "worker_lost", message: "gone" });
  session.answerAgain(answer.id);
  await settle();
  assert.deepEqual(/** @type {any} */ (chat.sent[1]).messages, [{ role: "user", content: "Hello" }]);
});

test("the pieces of a voice become one file", async () => {
  const { chat, session } = setUp();
  /** @type {boolean[]} */
  const firsts = [];
  session.on("sound", ({ isFirst }) => firsts.push(isFirst));
  session.ask("Speak", []);
  await settle();
  for (let chunkIndex = 0; chunkIndex < 2; chunkIndex += 1) {
    const audioBase64 = floatsToBase64(new Float32Array(12_000).fill(0.1));
    chat.emit("audio", { kind: "pcm", audioBase64, sampleRateHz: 24_000, chunkIndex });
  }
  chat.resolve({ ...beginTurn("s", 0), text: "Spoken" });
  await settle();
  assert.deepEqual(firsts, [true, false]);
  assert.equal(session.conversation.messages[1].extra.voice?.durationS, 1);
});

test("a kept conversation comes back, a broken answer repaired", async () => {
  const scene = setUp();
  const { chat, session } = scene;
  session.ask("Hello", []);
  await settle();
  const { head } = session;
  session.begin();
  assert.equal(chat.resets > 0, true);
  assert.deepEqual(texts(session), []);
  assert.equal(await session.open(head), true);
  assert.deepEqual(texts(session), ["user: Hello"]);
  assert.equal(session.isUnanswered, true);
  assert.equal(await session.open({ ...head, id: "nowhere" }), false);
});

test("opening the conversation that is shown leaves its answer as it is", async () => {
  const scene = setUp();
  const { chat, session } = scene;
  session.ask("Hello", []);
  await settle();
  chat.write("Hi");
  assert.equal(await session.open(session.head), true);
  assert.equal(session.isBusy, true);
  assert.deepEqual(texts(session), ["user: Hello", "assistant: Hi"]);
});

test("a deleted conversation stays deleted, even if its answer was still being generated", async () => {
  const { chat, session, kept } = setUp();
  session.ask("Hello", []);
  await settle();
  chat.write("Hi");
  kept.delete(session.head.id);
  session.begin(true);
  await settle();
  assert.equal(kept.size, 0);
  assert.equal(session.isBusy, false);
});

test("of two conversations opened at once the one chosen last is shown", async () => {
  const { session, kept, slow } = setUp();
  for (const id of ["large", "small"]) kept.set(id, { body: { conversation: emptyConversation() } });
  const [large, small] = ["large", "small"].map((id) => ({ ...session.head, id }));
  slow.add("large");
  await Promise.all([session.open(large), session.open(small)]);
  assert.equal(session.head.id, "small");
  const opening = session.open(large);
  session.begin();
  const { id } = session.head;
  await opening;
  assert.equal(session.head.id, id);
});

test("an answer over HTTP brings its voice as one file", async () => {
  const { chat, session } = setUp();
  session.ask("Speak", []);
  await settle();
  const wavBase64 = bytesToBase64(encodeWav(new Float32Array(12_000), 24_000));
  chat.emit("audio", { kind: "wav", audioBase64: wavBase64, sampleRateHz: 24_000, chunkIndex: 0 });
  chat.resolve({ ...beginTurn("s", 0), text: "Spoken", wavBase64 });
  await settle();
  assert.equal(session.conversation.messages[1].extra.voice?.durationS, 0.5);
});

test("a title is the first words of the first question", () => {
  const message = {
    id: "m1",
    role: /** @type {const} */ ("user"),
    status: /** @type {const} */ ("done"),
    createdAtMs: 0,
    extra: {},
  };
  const of = (/** @type {string} */ text) =>
    titleOf({ messages: [{ ...message, items: [{ type: "text", text }] }], nextNumber: 2 });
  assert.equal(of("  Hello \n there "), "Hello there");
  assert.equal([...of("word ".repeat(50))].length <= 60, true);
});

test("what is said in a question is shown with it and never sent", async () => {
  const { chat, session } = setUp();
  session.ask("Listen:", []);
  await settle();
  chat.emit("transcript", { text: "Hello there." });
  const [question] = session.conversation.messages;
  assert.equal(question.extra.transcript, "Hello there.");
  assert.ok(!JSON.stringify(toWire(session.conversation)).includes("Hello there."));
  session.begin();
  chat.emit("transcript", { text: "Too late." });
  assert.equal(session.conversation.messages.length, 0);
});

test("instructions changed while an answer comes go along with the next question", async () => {
  const scene = setUp();
  const { chat, session } = scene;
  session.ask("One", []);
  await settle();
  session.setSystem([{ type: "text", text: "Be brief." }], {});
  chat.write("First");
  chat.resolve({ ...beginTurn("s", 0), text: "First" });
  await settle();
  assert.deepEqual(texts(session), ["system: Be brief.", "user: One", "assistant: First"]);
  await exchange(scene, "Two", "Second");
  assert.equal(/** @type {any} */ (chat.sent[1]).messages[0].content, "Be brief.");
});

test("a conversation that the browser cannot read leaves the page usable", async () => {
  const scene = setUp();
  const { session, unreadable } = scene;
  await exchange(scene, "One", "First");
  const { head } = session;
  session.begin();
  unreadable.add(head.id);
  assert.equal(await session.open(head), false);
  assert.equal(session.ask("Two", []), true);
});

/** One tab of several with the same storage. @param {FakeIndexedDb} storage */
async function openTab(storage) {
  const store = await openHistory(/** @type {any} */ (storage)); // only what the store uses
  const chat = new FakeChat();
  const options = { chat, store, settings: () => ({ isStreaming: true }) };
  const session = new ChatSession(/** @type {any} */ (options)); // as above
  return { chat, session, store };
}

/** @param {Promise<unknown> | unknown} [work] */
async function untilStored(work) {
  await work;
  for (let turn = 0; turn < 50; turn += 1) await settle();
}

test("two tabs that go on with the same conversation keep one each", async () => {
  const storage = new FakeIndexedDb();
  const [one, other] = [await openTab(storage), await openTab(storage)];
  await untilStored(exchange(one, "Hello", "Hi"));
  const [head] = await other.store.list();
  assert.equal(await other.session.open(head), true);
  await untilStored(exchange(one, "One", "First"));
  await untilStored(exchange(other, "Two", "Second"));
  await untilStored(exchange(one, "Three", "Third"));
  const heads = await one.store.list();
  assert.deepEqual(heads.map(({ id }) => id).sort(), [one.session.head.id, other.session.head.id].sort());
  const stored = async (/** @type {string} */ id) => (await one.store.read(id))?.conversation.messages.map(messageTextOf);
  assert.deepEqual(await stored(one.session.head.id), ["Hello", "Hi", "One", "First", "Three", "Third"]);
  assert.deepEqual(await stored(other.session.head.id), ["Hello", "Hi", "Two", "Second"]);
});

test("a chosen title stays, whether its conversation is open here, in another tab or nowhere", async () => {
  const storage = new FakeIndexedDb();
  const [one, other] = [await openTab(storage), await openTab(storage)];
  await untilStored(exchange(one, "Hello", "Hi"));
  const { id } = one.session.head;
  const stored = async () => (await one.store.list()).map((head) => [head.id, head.title]);
  await untilStored(other.store.rename(id, "Greetings"));
  await untilStored(exchange(one, "One", "First"));
  assert.deepEqual(await stored(), [[id, "Greetings"]]);
  assert.equal(one.session.head.title, "Greetings");
  await untilStored(one.session.rename("Numbers"));
  one.session.begin();
  const [head] = await other.store.list();
  assert.equal(await other.session.open(head), true);
  await untilStored(exchange(other, "Two", "Second"));
  assert.deepEqual(await stored(), [[id, "Numbers"]]);
});
