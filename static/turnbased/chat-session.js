/** A chat conversation with its operations: ask, stop, edit, regenerate, delete, undo; stored in the browser. Pure. */

import { Emitter } from "../shared/async.js";
import {
  addMessage,
  canAnswer,
  deleteMessage,
  editMessage,
  emptyConversation,
  findMessage,
  mediaOf,
  messageTextOf,
  repaired,
  setSystem,
  textItem,
  titleOf,
  toFacts,
  toItems,
  toWire,
  truncateAfter,
  wireChars,
} from "./conversation.js";
import { base64ToBytes, base64ToFloats, encodeWav, joinChunks } from "../shared/pcm.js";
import { turnOptions, voiceOfWav } from "./turn.js";

/** @import { ContentItem } from "./conversation.js" */
/** @import { HistoryStore } from "./history-store.js" */
/** @import { ChatMessage, ChatSessionEvents, Conversation, Head, MediaPart } from "../../types/chat.js" */
/** @import { StreamingChat, TurnAudio, TurnError } from "./streaming-chat.js" */
/** @import { ChatSettings, TurnProgress, TurnResult } from "./turn.js" */

/**
 * Stored content of a conversation.
 * @typedef {{conversation: Conversation, hasOwnTitle?: boolean}} ChatBody `hasOwnTitle` was once stored here, now in the head
 *
 * @typedef {Object} ChatSessionOptions
 * @property {StreamingChat} chat
 * @property {HistoryStore<ChatBody>} store
 * @property {() => ChatSettings} settings read at each turn
 * @property {() => Promise<void>} [prepared] awaited before the first question, since the instructions may still be loading
 * @property {() => number} [nowMs] since 1970
 */

/** @extends {Emitter<ChatSessionEvents>} */
export class ChatSession extends Emitter {
  #options;
  #isPreparing = false;
  /** @type {Conversation} */ conversation = emptyConversation();
  /** @type {Head} */ head;
  #chosenId = ""; // of the conversation to be shown, which may still be read
  /** @type {TurnProgress | null} */ turn = null;
  /** @type {string | null} */ answerId = null;
  /** Audio of the answer so far. @type {Float32Array[]} */ #pieces = [];
  /** Before the last change, to undo it. @type {Conversation | null} */ #before = null;

  constructor(/** @type {ChatSessionOptions} */ { chat, ...options }) {
    super();
    this.#options = { prepared: async () => {}, nowMs: Date.now, chat, ...options };
    this.head = this.#newHead();
    chat.on("progress", (turn) => this.#onProgress(turn));
    chat.on("audio", (sound) => this.#onSound(sound));
    chat.on("transcript", ({ text }) => this.#onTranscript(text));
    chat.on("warning", (warning) => this.emit("warning", warning));
  }

  get isBusy() {
    return this.answerId !== null;
  }

  /** Whether the last question has no answer and none is pending. */
  get isUnanswered() {
    return !this.isBusy && this.conversation.messages.at(-1)?.role === "user" && canAnswer(this.conversation);
  }

  /** @returns {readonly MediaPart[]} all media that the next question sends along */
  get media() {
    return this.conversation.messages.flatMap(mediaOf);
  }

  /** Instructions from the next question on. @param {readonly ContentItem[]} items @param {ChatMessage["extra"]} extra display names */
  setSystem(items, extra) {
    this.conversation = setSystem(this.conversation, items, this.#options.nowMs(), extra);
    this.emit("change", null);
    if (this.conversation.messages.length > 1) void this.save();
  }

  /** @param {string} text @param {readonly MediaPart[]} media @returns {boolean} false: ignored */
  ask(text, media) {
    const asked = this.#question(text, media);
    if (!asked) return false;
    const createdAtMs = this.#options.nowMs();
    this.conversation = addMessage(this.conversation, { role: "user", createdAtMs, ...asked }).conversation;
    this.#before = null;
    void this.#answer();
    return true;
  }

  /** Edits a question and replaces everything after it. @param {string} id @param {string} text @param {readonly MediaPart[]} media */
  askInstead(id, text, media) {
    const asked = this.#question(text, media);
    if (!asked) return false;
    this.#before = this.conversation;
    this.conversation = editMessage(truncateAfter(this.conversation, id), id, asked);
    void this.#answer();
    return true;
  }

  /** @param {string} text @param {readonly MediaPart[]} media @returns {Pick<ChatMessage, "items" | "extra"> | null} null: ignored */
  #question(text, media) {
    if (this.isBusy || (text.trim() === "" && media.length === 0)) return null;
    return { items: toItems(text, media, Number(this.#options.settings().picturesPerS)), extra: { media: toFacts(media) } };
  }

  /** Generates the answer again, replacing everything after the question. @param {string} id of a question or its answer */
  answerAgain(id) {
    if (this.isBusy) return;
    const { messages } = this.conversation;
    const at = messages.findIndex((message) => message.id === id);
    const question = messages.slice(0, at + 1).findLast(({ role }) => role === "user");
    if (!question) return;
    this.#before = this.conversation;
    this.conversation = truncateAfter(this.conversation, question.id);
    void this.#answer();
  }

  /** Deletes a question with its answer, or an answer alone. @param {string} id */
  remove(id) {
    if (this.isBusy) return;
    const { messages } = this.conversation;
    const at = messages.findIndex((message) => message.id === id);
    const next = messages[at + 1];
    this.#before = this.conversation;
    this.conversation = deleteMessage(this.conversation, id);
    if (messages[at]?.role === "user" && next?.role === "assistant") {
      this.conversation = deleteMessage(this.conversation, next.id);
    }
    this.emit("change", null);
    void this.save();
  }

  undo() {
    if (!this.#before) return;
    const before = this.#before;
    this.#before = null;
    if (this.isBusy) this.#abandon();
    this.conversation = before;
    this.emit("change", null);
    void this.save();
  }

  get canUndo() {
    return this.#before !== null;
  }

  stop() {
    if (this.#isPreparing && this.answerId) this.#finish(this.answerId, null, "stopped", null);
    else this.#options.chat.stop();
  }

  /** Begins a new conversation. @param {boolean} [isDeleted] the one so far was deleted: its pending answer is not stored */
  begin(isDeleted = false) {
    if (isDeleted) this.#abandon();
    this.#switchTo(this.#newHead(), emptyConversation());
  }

  /** @param {Head} head @returns {Promise<boolean>} false: it no longer exists, or cannot be read */
  async open(head) {
    this.#chosenId = head.id;
    if (head.id === this.head.id) return true; // what is shown is newer than what is stored
    const body = await this.#options.store.read(head.id).catch(() => null);
    if (!body) return false;
    const hasOwnTitle = head.hasOwnTitle ?? body.hasOwnTitle;
    if (this.#chosenId === head.id) this.#switchTo({ ...head, hasOwnTitle }, repaired(body.conversation));
    return true;
  }

  /** Opens a conversation from a file and stores it. @param {Conversation} conversation @param {string} title */
  async adopt(conversation, title) {
    this.#switchTo({ ...this.#newHead(), title, hasOwnTitle: title !== "" }, repaired(conversation));
    await this.save();
  }

  async rename(/** @type {string} */ title) {
    this.head = { ...this.head, title, hasOwnTitle: true };
    this.emit("change", null);
    await this.#options.store.rename(this.head.id, title).catch((error) => this.#onNotKept(error));
  }

  /** Stores the conversation unless it is empty. */
  async save() {
    const { messages } = this.conversation;
    if (!messages.some(({ role }) => role !== "system")) return;
    const body = { conversation: this.conversation };
    this.head = {
      ...this.head,
      title: this.head.hasOwnTitle ? this.head.title : titleOf(this.conversation),
      updatedAtMs: this.#options.nowMs(),
      messageCount: messages.length,
      sizeBytes: sizeOf(this.conversation),
    };
    const { id } = this.head;
    try {
      const kept = await this.#options.store.write(this.head, body);
      if (this.head.id === id) {
        const chosen = kept.hasOwnTitle && { title: kept.title, hasOwnTitle: true };
        this.head = { ...this.head, id: kept.id, ...chosen };
      }
    } catch (error) {
      this.#onNotKept(error);
    }
    this.emit("heads", null);
  }

  #onNotKept(/** @type {unknown} */ error) {
    console.info("The conversation could not be kept.", error);
    this.emit("problem", { code: "not_kept" });
  }

  async #answer() {
    const settings = this.#options.settings();
    const added = addMessage(this.conversation, { role: "assistant", status: "pending", createdAtMs: this.#options.nowMs() });
    this.conversation = added.conversation;
    const answerId = added.id;
    this.answerId = answerId;
    this.#pieces = [];
    this.emit("change", null);
    void this.save();
    this.#isPreparing = true;
    await this.#options.prepared();
    this.#isPreparing = false;
    if (this.answerId !== answerId) return;
    const messages = toWire(this.conversation); // answers without text are left out
    try {
      const result = await this.#options.chat.send(messages, turnOptions(settings, messages));
      this.#finish(answerId, result, result.isStopped ? "stopped" : "done", null, settings.isStreaming);
    } catch (error) {
      const { partial, code = "internal", message = "" } = /** @type {Partial<TurnError>} */ (error);
      if (!partial) console.error(error);
      this.#finish(answerId, partial ?? null, "failed", { code, message }, settings.isStreaming);
    }
  }

  /**
   * @param {string} answerId
   * @param {TurnResult | TurnProgress | null} result
   * @param {"done" | "stopped" | "failed"} status
   * @param {{code: string, message: string} | null} problem
   * @param {boolean} [isStreaming]
   */
  #finish(answerId, result, status, problem, isStreaming = false) {
    if (this.answerId !== answerId) return; // another conversation is open, or the answer was undone
    const { text = "", wavBase64 = "", ...figures } = result ?? {};
    const rateHz = result?.sampleRateHz ?? 0;
    const spoken = rateHz > 0 && this.#pieces.length > 0 ? encodeWav(joinChunks(this.#pieces), rateHz) : null;
    const wav = wavBase64 ? base64ToBytes(wavBase64) : spoken;
    this.answerId = null;
    this.turn = null;
    this.conversation = editMessage(this.conversation, answerId, {
      items: text ? [textItem(text)] : [],
      status,
      extra: { figures, problem, voice: wav && voiceOfWav(wav) },
    });
    this.emit("change", null);
    const message = findMessage(this.conversation, answerId);
    if (message) this.emit("answered", { message, isPlayed: isStreaming && !wavBase64 });
    void this.save();
  }

  #onProgress(/** @type {TurnProgress} */ turn) {
    if (this.answerId === null) return;
    const isNews = turn.text !== this.turn?.text;
    this.turn = turn;
    if (isNews && this.#options.settings().isStreaming) {
      this.conversation = editMessage(this.conversation, this.answerId, { items: [textItem(turn.text)] });
    }
    this.emit("change", null);
  }

  #onSound(/** @type {TurnAudio} */ sound) {
    if (this.answerId === null || sound.kind === "wav") return; // a whole file comes with the result
    const isFirst = this.#pieces.length === 0;
    this.#pieces.push(base64ToFloats(sound.audioBase64));
    if (this.#options.settings().isStreaming) this.emit("sound", { audioBase64: sound.audioBase64, isFirst });
  }

  /** The transcript of a question's audio is shown, never sent. @param {string} text */
  #onTranscript(text) {
    const question = this.conversation.messages.findLast(({ role }) => role === "user");
    if (this.answerId === null || !question || !text) return;
    const extra = { ...question.extra, transcript: text };
    this.conversation = editMessage(this.conversation, question.id, { extra });
    this.emit("change", null);
  }

  #switchTo(/** @type {Head} */ head, /** @type {Conversation} */ conversation) {
    if (this.answerId !== null) {
      this.conversation = repaired(this.conversation); // a partial answer stays with its conversation
      void this.save();
    }
    this.#abandon();
    this.head = head;
    this.#chosenId = head.id;
    this.conversation = conversation;
    this.#before = null;
    this.emit("opened", null);
    this.emit("change", null);
  }

  /** Abandons the running turn. */
  #abandon() {
    this.answerId = null;
    this.turn = null;
    this.#options.chat.reset();
  }

  #newHead() {
    const nowMs = this.#options.nowMs();
    const id = `c${nowMs.toString(36)}${Math.random().toString(36).slice(2, 6)}`;
    return { id, title: "", createdAtMs: nowMs, updatedAtMs: nowMs, sizeBytes: 0, messageCount: 0 };
  }
}

/** @param {Conversation} conversation @returns {number} bytes, about */
const sizeOf = ({ messages }) =>
  messages.reduce((sum, one) => sum + messageTextOf(one).length + wireChars(mediaOf(one)) + (one.extra.voice?.wav.size ?? 0), 0);
