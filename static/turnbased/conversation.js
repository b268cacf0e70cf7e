/**
 * Operations on the messages of a chat conversation, and their conversion to protocol messages. Every
 * function returns a new conversation. Pure.
 *
 * The server finds its cache by the exact text of earlier answers, so an answer's text is stored and
 * sent back unchanged: never trimmed, never formatted.
 */

import { mediaOf } from "./media-part.js";

/** @import { ChatMessage, Conversation } from "../../types/chat.js" */
/** @import { AudioContent, ImageContent, Message, TextContent, TokenStats, VideoContent } from "../../types/protocol.js" */
/** @import { TurnProgress } from "./turn-progress.js" */

/** @typedef {TextContent | AudioContent | ImageContent | VideoContent} ContentItem */

/** Status of an answer; `pending` is still being generated. @typedef {"pending" | "done" | "stopped" | "failed"} AnswerStatus */

/** A message to add: without items, done and with no extra unless said otherwise.
 * @typedef {Pick<ChatMessage, "role" | "createdAtMs">
 *  & Partial<Pick<ChatMessage, "items" | "status" | "extra">>} NewMessage
 */

/** @returns {Conversation} */
export function emptyConversation() {
  return { messages: [], nextNumber: 1 };
}

/** @param {Conversation} conversation @param {NewMessage} given @returns {{conversation: Conversation, id: string}} */
export function addMessage(conversation, given) {
  const id = `m${conversation.nextNumber}`;
  const { role, items = [], status = "done", createdAtMs, extra = {} } = given;
  const message = { id, role, items, status, createdAtMs, extra };
  const messages = [...conversation.messages, message];
  return { conversation: { messages, nextNumber: conversation.nextNumber + 1 }, id };
}

/** Replaces the system message; empty items remove it. @param {Conversation} conversation @param {readonly ContentItem[]} items @param {number} createdAtMs */
export function setSystem(conversation, items, createdAtMs) {
  const others = conversation.messages.filter((message) => message.role !== "system");
  if (!hasContent(items)) return { ...conversation, messages: others };
  const id = `m${conversation.nextNumber}`;
  /** @type {ChatMessage} */ const system = { id, role: "system", items, status: "done", createdAtMs, extra: {} };
  return { messages: [system, ...others], nextNumber: conversation.nextNumber + 1 };
}

/**
 * @param {Conversation} conversation
 * @param {string} id
 * @param {Partial<Pick<ChatMessage, "items" | "status" | "extra">>} change
 */
export function editMessage(conversation, id, change) {
  const messages = conversation.messages.map((message) => (message.id === id ? { ...message, ...change } : message));
  return { ...conversation, messages };
}

/** @param {Conversation} conversation @param {string} id @returns {Conversation} */
export function deleteMessage(conversation, id) {
  return { ...conversation, messages: conversation.messages.filter((message) => message.id !== id) };
}

/** @param {Conversation} conversation @param {string} id @returns {Conversation} */
export function truncateAfter(conversation, id) {
  const at = conversation.messages.findIndex((message) => message.id === id);
  if (at < 0) return conversation;
  return { ...conversation, messages: conversation.messages.slice(0, at + 1) };
}

/** @param {Conversation} conversation @param {string} id @returns {ChatMessage | undefined} */
export function findMessage(conversation, id) {
  return conversation.messages.find((message) => message.id === id);
}

/** Concatenated text of a message, unchanged. @param {ChatMessage} message @returns {string} */
export function messageTextOf(message) {
  return message.items.map((item) => (item.type === "text" ? item.text : "")).join("");
}

/** @param {string} text @returns {TextContent} */
export function textItem(text) {
  return { type: "text", text };
}

/**
 * The history as protocol messages, the new user message last, without empty messages. Consecutive
 * messages of one role stay separate.
 * @param {Conversation} conversation
 */
export function toWire(conversation) {
  return conversation.messages
    .filter(isSendable)
    .map((message) => ({
      role: message.role,
      content: message.role === "assistant" ? messageTextOf(message) : contentOf(message.items),
    }));
}

/** Whether the last message is the user's, so that the model can answer. @param {Conversation} conversation @returns {boolean} */
export function canAnswer(conversation) {
  return toWire(conversation).at(-1)?.role === "user";
}

/** @param {ChatMessage} message @returns {boolean} */
function isSendable(message) {
  if (message.role === "assistant") return messageTextOf(message) !== "";
  return hasContent(message.items);
}

/** @param {readonly ContentItem[]} items @returns {boolean} */
function hasContent(items) {
  return items.some((item) => item.type !== "text" || item.text !== "");
}

/** A single text is sent as a string. @param {readonly ContentItem[]} items @returns {string | ContentItem[]} */
function contentOf(items) {
  const full = items.filter((item) => item.type !== "text" || item.text !== "");
  const [first] = full;
  return full.length === 1 && first?.type === "text" ? first.text : [...full];
}

// Properties of a conversation: title, figures, recording.

/** Stored figures of a finished turn.
 * @typedef {Partial<Omit<TurnProgress, "text" | "wavBase64">>} Figures
 *
 * @typedef {{wav: Blob, durationS: number}} Voice the answer's audio as a file
 */

const TITLE_CHARACTERS = 60;

/** The beginning of the first question; "" if there is none. @param {Conversation} conversation */
export function titleOf({ messages }) {
  for (const message of messages) {
    if (message.role !== "user") continue;
    const words = messageTextOf(message).replace(/\s+/g, " ").trim();
    if (words) return shortened(words);
    const name = mediaOf(message).find((part) => part.name)?.name;
    if (name) return shortened(name);
  }
  return "";
}

/** @param {string} words */
function shortened(words) {
  const characters = [...words];
  if (characters.length <= TITLE_CHARACTERS) return words;
  return `${characters
    .slice(0, TITLE_CHARACTERS - 1)
    .join("")
    .trimEnd()}…`;
}

/** @param {ChatMessage} message @returns {Figures} */
export function figuresOf({ extra }) {
  return /** @type {Figures | undefined} */ (extra.figures) ?? {};
}

/** @param {ChatMessage} message @returns {Voice | null} */
export function voiceOf({ extra }) {
  return /** @type {Voice | null | undefined} */ (extra.voice) ?? null;
}

/** @param {ChatMessage} message @returns {{code: string, message: string} | null} why an answer failed */
export function problemOf({ extra }) {
  return /** @type {{code: string, message: string} | null | undefined} */ (extra.problem) ?? null;
}

/** Token statistics of the last finished turn. @param {Conversation} conversation @returns {TokenStats | null} */
export function lastTokenStats({ messages }) {
  const last = messages.findLast((message) => figuresOf(message).tokenStats);
  return (last && figuresOf(last).tokenStats) ?? null;
}

/** The recording of the last turn that was recorded. @param {Conversation} conversation */
export function lastRecordingId({ messages }) {
  const last = messages.findLast((message) => figuresOf(message).recordingSessionId);
  return (last && figuresOf(last).recordingSessionId) ?? null;
}

/** Marks a pending answer as stopped, or deletes it if it is empty. @param {Conversation} conversation @returns {Conversation} */
export function repaired(conversation) {
  const pending = conversation.messages.find(({ status }) => status === "pending");
  if (!pending) return conversation;
  if (messageTextOf(pending) === "") return deleteMessage(conversation, pending.id);
  return editMessage(conversation, pending.id, { status: "stopped" });
}
