/**
 * Conversations as files: JSON with Base64 inside, and MessagePack with the media as files. Pure.
 *
 * JSON preserves everything. MessagePack is for other programs: `{messages: [{role, content}]}`.
 */

import { CodedError } from "../shared/texts.js";
import { base64ToBytes, bytesToBase64, floatsToBase64, wavFormat } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";
import { partFile } from "./attachments.js";
import { addMessage, emptyConversation, mediaOf, toFacts, toItems } from "./conversation.js";
import { voiceOfWav } from "./turn.js";

/** @import { Figures } from "./conversation.js" */
/** @import { ChatMessage, Conversation, MediaPart } from "../../types/chat.js" */

/** @typedef {Pick<typeof import("@msgpack/msgpack"), "encode" | "decode">} Msgpack the library */

const FORMAT = "minicpmo-live-chat";
const VERSION = 1;
const ROLES = ["system", "user", "assistant"];
const MEDIA_TYPES = ["audio", "image", "video"];
const JSON_START = 0x7b; // {

export async function toJson(/** @type {Conversation} */ conversation, /** @type {string} */ title, /** @type {Date} */ now) {
  const messages = await Promise.all(conversation.messages.map(messageToJson));
  return JSON.stringify({ format: FORMAT, version: VERSION, title, exported_at: now.toISOString(), messages }, null, 1);
}

async function messageToJson(/** @type {ChatMessage} */ message) {
  const { role, items, status, createdAtMs, extra } = message;
  const wav = await voiceBytes(message);
  return {
    role,
    status,
    created_at: new Date(createdAtMs).toISOString(),
    content: items,
    ...(extra.media?.length && { media: extra.media }),
    ...(extra.names && { names: extra.names }),
    ...(extra.figures && { figures: extra.figures }),
    ...(wav && { voice_wav: bytesToBase64(wav) }),
  };
}

export async function toMsgpack(/** @type {Conversation} */ { messages }, /** @type {Pick<Msgpack, "encode">} */ { encode }) {
  const packed = messages.map(async (message) => {
    const data = await voiceBytes(message);
    const spoken = data ? [{ type: "audio", format: "wav", data }] : [];
    return { role: message.role, content: [...partsOf(message), ...spoken] };
  });
  return encode({ messages: await Promise.all(packed) });
}

async function voiceBytes(/** @type {ChatMessage} */ message) {
  const file = await message.extra.voice?.wav.arrayBuffer();
  return file && new Uint8Array(file);
}

/** @param {ChatMessage} message its items in order */
function partsOf(message) {
  const media = mediaOf(message);
  return message.items.map((item) => {
    const { type } = item;
    if (type === "text") return { type, text: item.text };
    const part = /** @type {MediaPart} */ (media.shift());
    const { bytes, mimeType } = partFile(part);
    return { type, format: mimeType.split("/").at(-1) ?? "", name: part.name, data: bytes };
  });
}

/**
 * @param {Uint8Array} bytes
 * @param {number} nowMs
 * @param {() => Promise<Pick<Msgpack, "decode">>} loadMsgpack called for MessagePack only
 * @returns {Promise<{conversation: Conversation, title: string}>}
 * @throws {CodedError} `not_a_chat`, `newer_version`
 */
export async function fromFile(bytes, nowMs, loadMsgpack) {
  const msgpack = bytes[0] === JSON_START ? null : await loadMsgpack();
  const file = asRecord(attempt(() => (msgpack ? msgpack.decode(bytes) : JSON.parse(new TextDecoder().decode(bytes)))));
  if (!Array.isArray(file.messages) || file.messages.length > LIMITS.MESSAGES_MAX) throw new CodedError("not_a_chat");
  if (file.format === FORMAT && Number(file.version) > VERSION) throw new CodedError("newer_version");
  let conversation = emptyConversation();
  for (const message of file.messages) {
    ({ conversation } = addMessage(conversation, readMessage(asRecord(message), nowMs)));
  }
  return { conversation, title: textOf(file.title) };
}

function attempt(/** @type {() => unknown} */ parse) {
  try {
    return parse();
  } catch {
    throw new CodedError("not_a_chat");
  }
}

/** @param {Record<string, unknown>} message @param {number} nowMs @returns {Omit<ChatMessage, "id">} */
function readMessage(message, nowMs) {
  const role = ROLES.find((known) => known === message.role);
  if (!role) throw new CodedError("not_a_chat");
  const facts = Array.isArray(message.media) ? message.media.map(asRecord) : [];
  const list = typeof message.content === "string" ? [{ type: "text", text: message.content }] : message.content;
  if (!Array.isArray(list)) throw new CodedError("not_a_chat");
  const isAnswer = role === "assistant";
  const read = list.map((item) => readItem(asRecord(item), facts));
  const media = read.flatMap((one) => (one.part ? [one.part] : []));
  const voice = isAnswer ? readVoice(message, list) : null;
  const text = read.map((one) => one.text).join("");
  const stopped = message.status === "stopped" ? "stopped" : "done";
  return {
    role: /** @type {ChatMessage["role"]} */ (role),
    items: isAnswer
      ? toItems(text, [])
      : read.flatMap(({ text, part, picturesPerS }) => toItems(text, part ? [part] : [], picturesPerS)),
    status: message.status === "failed" ? "failed" : stopped,
    createdAtMs: Date.parse(textOf(message.created_at)) || nowMs,
    extra: {
      media: isAnswer ? [] : toFacts(media),
      ...(Array.isArray(message.names) && { names: message.names.map(textOf) }),
      ...(isAnswer && { figures: figuresFrom(message.figures), voice }),
    },
  };
}

/** @param {Record<string, unknown>} item @param {Record<string, unknown>[]} facts of the remaining media */
function readItem(item, facts) {
  if (item.type === "text") return { text: textOf(item.text), part: null, picturesPerS: 1 };
  const type = MEDIA_TYPES.find((known) => known === item.type);
  if (!type) throw new CodedError("not_a_chat");
  const known = facts.shift() ?? {};
  /** @type {MediaPart} */ const part = {
    ...numbersOf(known),
    type: /** @type {MediaPart["type"]} */ (type),
    data: dataOf(type, item.data),
    mimeType: textOf(known.mimeType) || (type === "audio" ? "" : `${type}/${textOf(item.format)}`),
    name: textOf(known.name ?? item.name),
    ...(typeof known.poster === "string" && { poster: known.poster }),
  };
  return { text: "", part, picturesPerS: Number(item.stack_frames) || 1 };
}

/** @param {string} type @param {unknown} data Base64, or the bytes of a file */
function dataOf(type, data) {
  if (typeof data === "string") {
    attempt(() => base64ToBytes(data));
    return data;
  }
  if (!(data instanceof Uint8Array)) throw new CodedError("not_a_chat");
  if (type !== "audio") return bytesToBase64(data);
  try {
    return floatsToBase64(readWav(data, LIMITS.INPUT_SAMPLE_RATE_HZ));
  } catch {
    return ""; // an answer's voice has another rate and is read by `readVoice`
  }
}

function readVoice(/** @type {Record<string, unknown>} */ message, /** @type {readonly unknown[]} */ list) {
  const spoken = asRecord(list.find((item) => asRecord(item).type === "audio")).data;
  const wav = typeof message.voice_wav === "string" ? base64ToBytes(message.voice_wav) : spoken;
  return wav instanceof Uint8Array ? voiceOfWav(new Uint8Array(wav)) : null; // a copy with its own buffer
}

/** @param {unknown} value @returns {Record<string, unknown>} */
const asRecord = (value) => (typeof value === "object" && value !== null ? /** @type {Record<string, unknown>} */ (value) : {});

const textOf = (/** @type {unknown} */ value) => (typeof value === "string" ? value : "");

function numbersOf(/** @type {Record<string, unknown>} */ facts) {
  const numbers = Object.entries(facts).filter(([, value]) => typeof value === "number");
  return /** @type {Record<string, number>} */ (Object.fromEntries(numbers));
}

/** @param {unknown} value untrusted; only valid figures are kept @returns {Figures} */
function figuresFrom(value) {
  const figures = asRecord(value);
  const kept = Object.entries(figures).filter(([, one]) => ["number", "string", "boolean"].includes(typeof one));
  return { ...Object.fromEntries(kept), ...(figures.tokenStats ? { tokenStats: numbersOf(asRecord(figures.tokenStats)) } : {}) };
}

/** @param {Uint8Array} file @param {number} rateHz @throws {RangeError} unsupported format */
export function readWav(file, rateHz) {
  const found = wavFormat(file);
  if (!found) throw new RangeError("this is no WAV file with sound");
  const { format, channels, bits, dataOffset, dataBytes } = found;
  if (format !== 1 || channels !== 1 || bits !== 16 || found.rateHz !== rateHz) {
    const kind = `format ${format}, ${bits} bit, ${channels} channels, ${found.rateHz} Hz`;
    throw new RangeError(`${kind}; the server hears format 1, 16 bit, 1 channels, ${rateHz} Hz`);
  }
  const view = new DataView(file.buffer, file.byteOffset + dataOffset, Math.min(dataBytes, file.length - dataOffset));
  return Float32Array.from({ length: Math.floor(view.byteLength / 2) }, (_, i) => view.getInt16(i * 2, true) / 32_768);
}
