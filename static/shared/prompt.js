/** System content, voice samples and presets. Pure. */

import { base64ToFloats, floatsToBase64 } from "./pcm.js";

/** @import { ChatMessage } from "../../types/chat.js" */
/** @import { AudioContent, ImageContent, TextContent } from "../../types/protocol.js" */

/**
 * @typedef {{type: "image", name: string, data: string}} ImageItem `data` is Base64 of the file
 * @typedef {{type: "text", text: string} | {type: "audio", voice: Voice | null} | ImageItem} ContentItem
 * @typedef {ContentItem["type"]} ItemKind
 * @typedef {Omit<Http.PresetAudio, "data">} PresetVoice
 */

/** @param {ItemKind} kind @returns {ContentItem} */
export function emptyItem(kind) {
  if (kind === "text") return { type: "text", text: "" };
  if (kind === "audio") return { type: "audio", voice: null };
  return { type: "image", name: "", data: "" };
}

/** Moves an item; moves beyond either end are ignored. @template T @param {readonly T[]} items @param {number} index @param {number} step */
export const moveItem = (items, index, step) =>
  index + step in items ? items.toSpliced(index, 1).toSpliced(index + step, 0, items[index]) : [...items];

/** Converts items to protocol messages, without empty ones. @param {readonly ContentItem[]} items */
export function contentToWire(items) {
  /** @type {(TextContent | AudioContent | ImageContent)[]} */ const wire = [];
  for (const item of items) {
    if (item.type === "text" && item.text.trim()) wire.push({ type: "text", text: item.text });
    if (item.type === "audio" && item.voice) wire.push({ type: "audio", data: voiceToWire(item.voice) });
    if (item.type === "image" && item.data) wire.push({ type: "image", data: item.data });
  }
  return wire;
}

/** Display names, in the order of the protocol items. @param {readonly ContentItem[]} items */
export function namesOf(items) {
  return items
    .filter((item) => (item.type === "text" ? item.text.trim() : item.type === "audio" ? item.voice : item.data))
    .map((item) => (item.type === "text" ? "" : item.type === "audio" ? (item.voice?.name ?? "") : item.name));
}

/** The items of a message, as they are edited. @param {ChatMessage} message @returns {ContentItem[]} */
export function itemsOf({ items, extra }) {
  return items.flatMap((item, index) => {
    const name = extra.names?.[index] ?? "";
    if (item.type === "text") return { type: "text", text: item.text };
    if (item.type === "audio") return { type: "audio", voice: voiceFromWire(name, item.data, "upload") };
    return item.type === "image" ? { type: "image", name, data: item.data } : [];
  });
}

/**
 * Combines a preset's items with its audio, which is sent separately in the order of the audio items.
 * @param {readonly (Http.PresetText | PresetVoice)[]} items
 * @param {readonly Http.PresetSound[]} sounds
 * @returns {ContentItem[]}
 */
export function contentFromPreset(items, sounds) {
  let next = 0;
  return items.map((item) => {
    if (item.type === "text") return { type: "text", text: item.text };
    return { type: "audio", voice: voiceFromPreset(item, sounds[next++] ?? null) };
  });
}

/** @param {PresetVoice | null} item @param {Http.PresetSound | null} [sound] */
const voiceFromPreset = (item, sound) =>
  item && sound ? voiceFromWire(sound.name, sound.data, item.path === "default" ? "default" : "preset") : null;

/** The voices in their order; with the first one the model speaks. @param {readonly ContentItem[]} items */
export const voicesOf = (items) => items.flatMap((item) => (item.type === "audio" && item.voice ? [item.voice] : []));

// Voice samples: mono float32 at 16 kHz with name and origin.

export const VOICE_RATE_HZ = 16_000;
const SHORTEST_S = 0.5; // the server refuses shorter samples
const LONGEST_S = 30; // and longer ones, unless it reports another limit
const LARGEST_FILE_BYTES = 10 * 1024 * 1024;

/**
 * @typedef {"default" | "preset" | "upload" | "library"} VoiceOrigin
 *
 * @typedef {Object} Voice
 * @property {string} name for people
 * @property {Float32Array} samples mono, 16 kHz
 * @property {VoiceOrigin} origin
 *
 * @typedef {{minS: number, maxS: number, maxFileBytes: number}} VoiceLimits
 */

/** @param {{limits?: Record<string, number>} | null} defaults answer of GET /api/frontend_defaults @returns {VoiceLimits} */
export function voiceLimits(defaults) {
  const limits = defaults?.limits ?? {};
  return {
    minS: limits.reference_min_s ?? SHORTEST_S,
    maxS: limits.reference_max_s ?? LONGEST_S,
    maxFileBytes: limits.reference_upload_bytes ?? LARGEST_FILE_BYTES,
  };
}

/** Checks a sample; null if it is usable. @param {Float32Array} samples @param {VoiceLimits} limits */
export function voiceProblem(samples, { minS, maxS }) {
  const lengthS = samples.length / VOICE_RATE_HZ;
  if (lengthS < minS) return "too_short";
  if (lengthS > maxS) return "too_long";
  return samples.some((sample) => sample !== 0) ? null : "silent";
}

/** @param {Voice} voice @returns {number} seconds */
export const voiceLengthS = (voice) => voice.samples.length / VOICE_RATE_HZ;

/** @param {Voice} voice @returns {string} Base64 of float32 samples */
export const voiceToWire = (voice) => floatsToBase64(voice.samples);

/** @param {string} name @param {string} data Base64 of float32 samples @param {VoiceOrigin} origin @returns {Voice} */
export const voiceFromWire = (name, data, origin) => ({ name, samples: base64ToFloats(data), origin });

/** File name without folder and extension. @param {string} fileName */
export const nameOfFile = (fileName) => fileName.replace(/^.*[\\/]/, "").replace(/\.[A-Za-z0-9]{1,5}$/, "") || fileName;

// Presets of the server, and their application to a page.

/**
 * @typedef {"turnbased" | "half_duplex_audio" | "omni" | "audio_duplex"} PresetMode
 * @typedef {string | Record<string, string>} Words one text, or one for each language
 * @typedef {ReturnType<typeof applyPreset>} AppliedPreset
 */

/** Text in the given language, else in English, else in any. @param {Words | null | undefined} words @param {string} lang */
export function wordsIn(words, lang) {
  if (typeof words === "string" || !words) return words || "";
  return words[lang] ?? words.en ?? Object.values(words)[0] ?? "";
}

/** @param {Http.Preset} preset @returns {boolean} whether its audio has to be fetched */
export const hasSounds = (preset) => preset.ref_audio !== null || preset.system_content.some((item) => item.type === "audio");

/** @param {Http.Preset} preset @param {Http.PresetSounds | null} sounds null if it has none @param {boolean} isChosen */
export function applyPreset(preset, sounds, isChosen) {
  return {
    id: preset.id,
    systemPrompt: preset.system_prompt ?? "", // of the duplex modes, as is the voice
    voice: voiceFromPreset(preset.ref_audio, sounds?.ref_audio),
    items: contentFromPreset(preset.system_content, sounds?.system_content_audio ?? []), // of the other modes
    settings: flatten(preset.settings ?? {}),
    isChosen, // by the visitor now; false when the page opens
  };
}

/** Flattens groups: {vad: {threshold}} becomes vad_threshold. @param {Record<string, unknown>} settings @returns {Record<string, unknown>} */
export function flatten(settings) {
  /** @type {Record<string, unknown>} */ const flat = {};
  for (const [name, value] of Object.entries(settings)) {
    if (value === null || typeof value !== "object" || Array.isArray(value)) flat[name] = value;
    else for (const [inner, one] of Object.entries(value)) flat[`${name}_${inner}`] = one;
  }
  return flat;
}

/**
 * Initial preset: the one used last, else the first in the visitor's language.
 * @param {readonly Http.Preset[]} presets
 * @param {string | null} rememberedId
 * @param {string} lang
 * @returns {Http.Preset | null}
 */
export function firstPreset(presets, rememberedId, lang) {
  const remembered = presets.find(({ id }) => id === rememberedId);
  const spoken = presets.find(({ id }) => id.startsWith(LANGUAGE_NAMES[lang] ?? "\0"));
  return remembered ?? spoken ?? presets[0] ?? null;
}

/** Prefixes of preset ids by language. @type {Record<string, string>} */ const LANGUAGE_NAMES = { en: "english", zh: "chinese" };
