// @ts-check
/**
 * Facts about a conversation: its title, its last figures, whether it can go on. Pure.
 */

import { deleteMessage, editMessage, messageTextOf } from "./conversation.js";
import { mediaOf } from "./media-part.js";

/** @typedef {import("./conversation.js").ChatMessage} ChatMessage */
/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./turn-progress.js").TurnProgress} TurnProgress */

/** Figures of a turn that is over, as they are kept.
 * @typedef {Partial<Omit<TurnProgress, "text" | "wavBase64">>} Figures
 *
 * @typedef {{wav: Blob, durationS: number}} Voice the answer's sound as a file
 */

const TITLE_CHARACTERS = 60;

/**
 * The first words of the first question; "" if it has none.
 *
 * @param {Conversation} conversation
 */
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

/**
 * What the last turn that ended said of tokens.
 *
 * @param {Conversation} conversation
 * @returns {import("../shared/protocol.js").TokenStats | null}
 */
export function lastTokenStats({ messages }) {
  const last = messages.findLast((message) => figuresOf(message).tokenStats);
  return (last && figuresOf(last).tokenStats) ?? null;
}

/**
 * The recording of the last turn that was recorded.
 *
 * @param {Conversation} conversation
 */
export function lastRecordingId({ messages }) {
  const last = messages.findLast((message) => figuresOf(message).recordingSessionId);
  return (last && figuresOf(last).recordingSessionId) ?? null;
}

/**
 * A conversation that was kept while an answer was coming: what came stays, as a broken answer.
 *
 * @param {Conversation} conversation
 * @returns {Conversation}
 */
export function repaired(conversation) {
  const pending = conversation.messages.find(({ status }) => status === "pending");
  if (!pending) return conversation;
  if (messageTextOf(pending) === "") return deleteMessage(conversation, pending.id);
  return editMessage(conversation, pending.id, { status: "stopped" });
}
