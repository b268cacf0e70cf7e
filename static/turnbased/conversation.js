/**
 * Messages of a chat conversation: operations (each returns a new conversation), limits, conversion to the protocol. Pure.
 *
 * The server finds its cache by the exact text of earlier answers, so an answer's text is stored and
 * sent back unchanged: never trimmed, never formatted.
 */

import { LIMITS } from "../shared/protocol.js";
import { formatBytes, formatNumber, S_PER_MINUTE, t } from "../shared/texts.js";

/** @import { ChatMessage, Conversation, MediaLimits, MediaPart } from "../../types/chat.js" */
/** @import { AudioContent, ImageContent, TextContent, TokenStats, VideoContent } from "../../types/protocol.js" */
/** @import { TurnProgress } from "./turn.js" */

/** @typedef {TextContent | AudioContent | ImageContent | VideoContent} ContentItem */

/** Status of an answer; `pending` is still being generated. @typedef {"pending" | "done" | "stopped" | "failed"} AnswerStatus */

/** A message to add: without items, done and with no extra unless said otherwise.
 * @typedef {Pick<ChatMessage, "role" | "createdAtMs">
 *  & Partial<Pick<ChatMessage, "items" | "status" | "extra">>} NewMessage
 */

/** @returns {Conversation} */
export const emptyConversation = () => ({ messages: [], nextNumber: 1 });

export function addMessage(/** @type {Conversation} */ conversation, /** @type {NewMessage} */ given) {
  const id = `m${conversation.nextNumber}`;
  const { role, items = [], status = "done", createdAtMs, extra = {} } = given;
  const message = { id, role, items, status, createdAtMs, extra };
  const messages = [...conversation.messages, message];
  return { conversation: { messages, nextNumber: conversation.nextNumber + 1 }, id };
}

/**
 * Replaces the system message; empty items remove it.
 * @param {Conversation} conversation
 * @param {readonly ContentItem[]} items
 * @param {number} createdAtMs
 * @param {ChatMessage["extra"]} [extra]
 */
export function setSystem(conversation, items, createdAtMs, extra) {
  const others = conversation.messages.filter((message) => message.role !== "system");
  if (!hasContent(items)) return { ...conversation, messages: others };
  const added = addMessage(conversation, { role: "system", items, createdAtMs, extra }).conversation;
  return { ...added, messages: [...added.messages.slice(-1), ...others] };
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

export const deleteMessage = (/** @type {Conversation} */ conversation, /** @type {string} */ id) => ({
  ...conversation,
  messages: conversation.messages.filter((message) => message.id !== id),
});

export function truncateAfter(/** @type {Conversation} */ conversation, /** @type {string} */ id) {
  const at = conversation.messages.findIndex((message) => message.id === id);
  if (at < 0) return conversation;
  return { ...conversation, messages: conversation.messages.slice(0, at + 1) };
}

/** @param {Conversation} conversation @param {string} id @returns {ChatMessage | undefined} */
export const findMessage = (conversation, id) => conversation.messages.find((message) => message.id === id);

/** Concatenated text of a message, unchanged. @param {ChatMessage} message @returns {string} */
export const messageTextOf = (message) => message.items.map((item) => (item.type === "text" ? item.text : "")).join("");

/** @param {string} text @returns {TextContent} */
export const textItem = (text) => ({ type: "text", text });

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
export const canAnswer = (conversation) => toWire(conversation).at(-1)?.role === "user";

function isSendable(/** @type {ChatMessage} */ message) {
  if (message.role === "assistant") return messageTextOf(message) !== "";
  return hasContent(message.items);
}

/** @param {readonly ContentItem[]} items @returns {boolean} */
const hasContent = (items) => items.some((item) => item.type !== "text" || item.text !== "");

/** A single text is sent as a string. @param {readonly ContentItem[]} items @returns {string | ContentItem[]} */
function contentOf(items) {
  const full = items.filter((item) => item.type !== "text" || item.text !== "");
  const [first] = full;
  return full.length === 1 && first?.type === "text" ? first.text : [...full];
}

// Properties of a conversation: title, figures, recording.

/** Stored figures of a finished turn.
 * @typedef {Partial<Omit<TurnProgress, "text" | "wavBase64" | "tokenStats">> & {tokenStats?: Partial<TokenStats> | null}} Figures
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

function shortened(/** @type {string} */ words) {
  const characters = [...words];
  const beginning = characters.slice(0, TITLE_CHARACTERS - 1).join("");
  return characters.length <= TITLE_CHARACTERS ? words : `${beginning.trimEnd()}…`;
}

/** A figure of the last turn that has it. @template {keyof Figures} Name @param {Conversation} conversation @param {Name} name */
export const lastFigure = ({ messages }, name) =>
  messages.findLast(({ extra }) => extra.figures?.[name])?.extra.figures?.[name] ?? null;

/** Marks a pending answer as stopped, or deletes it if it is empty. @param {Conversation} conversation @returns {Conversation} */
export function repaired(conversation) {
  const pending = conversation.messages.find(({ status }) => status === "pending");
  if (!pending) return conversation;
  if (messageTextOf(pending) === "") return deleteMessage(conversation, pending.id);
  return editMessage(conversation, pending.id, { status: "stopped" });
}

/** @typedef {Omit<MediaPart, "type" | "data">} MediaFacts */

const BASE64_CHARS = 4;
const BASE64_BYTES = 3;

/**
 * A message's content: media first, then the text, as in showing something and then asking.
 * @param {string} text
 * @param {readonly MediaPart[]} media
 * @param {number} picturesPerS frames per second of a video
 * @returns {ContentItem[]}
 */
export function toItems(text, media, picturesPerS = 1) {
  const items = media.map(
    ({ type, data }) =>
      /** @type {ContentItem} */ (type === "video" ? { type, data, stack_frames: picturesPerS } : { type, data }),
  );
  return text ? [...items, { type: "text", text }] : items;
}

/** Display data stored with a message. @param {readonly MediaPart[]} media @returns {MediaFacts[]} */
export const toFacts = (media) => media.map(({ data, type, ...facts }) => facts);

export function mediaOf(/** @type {ChatMessage} */ { items, extra }) {
  /** @type {MediaPart[]} */ const media = [];
  for (const item of items) {
    if (item.type === "text") continue;
    const facts = { mimeType: "", name: "", ...extra.media?.[media.length] };
    media.push({ ...facts, type: item.type, data: item.data });
  }
  return media;
}

/** Size of media in a request, characters. @param {readonly MediaPart[]} media */
export const wireChars = (media) => media.reduce((sum, { data }) => sum + data.length, 0);

/** @param {MediaPart} part @returns {number} bytes size of the stored data */
export const partBytes = ({ data }) => Math.floor((data.length / BASE64_CHARS) * BASE64_BYTES);

const IME_KEY_CODE = 229; // an input method handles the key; Safari says so by nothing else when Enter ends a composition

/** Whether an input method takes the key. @param {Pick<KeyboardEvent, "isComposing" | "keyCode">} event */
export const isComposed = ({ isComposing, keyCode }) => isComposing || keyCode === IME_KEY_CODE;

/** Whether a key sends the message. @param {Pick<KeyboardEvent, "key" | "shiftKey" | "isComposing" | "keyCode">} event */
export const isSendKey = (event) => event.key === "Enter" && !event.shiftKey && !isComposed(event);

// Limits of attachments.

const REQUEST_SPARE_BYTES = 64 * 1024; // allowance for text and JSON syntax of a request
/** For the `accept` of a file input. */
export const ACCEPT = "audio/*,image/*,video/*,.mkv,.m4a,.flac,.opus";

/** @param {Record<string, number> | undefined} limits of GET /api/frontend_defaults @returns {MediaLimits} */
export function mediaLimits(limits = {}) {
  const requestMaxBytes = (limits.chat_message_bytes ?? LIMITS.CHAT_SOCKET_LIMIT_BYTES) - REQUEST_SPARE_BYTES;
  const fitsBytes = Math.floor((requestMaxBytes / BASE64_CHARS) * BASE64_BYTES);
  const audioMaxS = limits.chat_audio_max_s ?? LIMITS.CHAT_AUDIO_MAX_S;
  const bytesPerS = LIMITS.INPUT_SAMPLE_RATE_HZ * LIMITS.SAMPLE_BYTES;
  return {
    audioMaxS: Math.min(audioMaxS, Math.floor(fitsBytes / bytesPerS)),
    videoMaxS: audioMaxS,
    imageMaxBytes: Math.min(LIMITS.PICTURE_MAX_BYTES, fitsBytes),
    imageMaxSidePx: LIMITS.PICTURE_MAX_SIDE_PX,
    imageMaxPixels: LIMITS.PICTURE_MAX_PIXELS,
    videoMaxBytes: Math.min(LIMITS.VIDEO_MAX_BYTES, fitsBytes),
    requestMaxBytes,
    itemsMax: LIMITS.ITEMS_MAX - 1, // the text is one more
  };
}

/** @param {number} sentChars Base64 of the conversation so far @param {number} newChars @param {MediaLimits} limits */
export const fitsRequest = (sentChars, newChars, limits) => sentChars + newChars <= limits.requestMaxBytes;

// Texts of limits and violations.

/** @param {number} seconds */
export const minutes = (seconds) => formatNumber(seconds / S_PER_MINUTE, seconds % S_PER_MINUTE === 0 ? 0 : 1);

/** The limits in one line. @param {MediaLimits} limits */
export function limitWords(limits) {
  return t("chat.limits", {
    minutes: minutes(limits.audioMaxS),
    image: formatBytes(limits.imageMaxBytes),
    video: formatBytes(limits.videoMaxBytes),
    request: formatBytes(limits.requestMaxBytes),
  });
}
