// @ts-check
/**
 * Presets as the server lists them, and what a page makes of one. Pure.
 */

import { contentFromPreset, voiceFromPreset } from "./system-content.js";

/** @typedef {import("./system-content.js").ContentItem} ContentItem */
/** @typedef {import("./voice.js").Voice} Voice */

/**
 * @typedef {"turnbased" | "half_duplex_audio" | "omni" | "audio_duplex"} PresetMode
 * @typedef {string | Record<string, string>} Words one text, or one for each language
 *
 * @typedef {Object} AppliedPreset
 * @property {string} id
 * @property {string} systemPrompt of duplex modes; "" elsewhere
 * @property {Voice | null} voice of duplex modes; null if the preset names none
 * @property {ContentItem[]} items system content of the other modes
 * @property {Record<string, unknown>} settings with groups flattened: {vad: {threshold}} is vad_threshold
 * @property {boolean} isChosen the visitor chose it now; false when the page opens
 */

/**
 * Returns the text for a language, else the English one, else any.
 *
 * @param {Words | null | undefined} words
 * @param {string} lang
 */
export function wordsIn(words, lang) {
  if (typeof words === "string" || !words) return words || "";
  return words[lang] ?? words.en ?? Object.values(words)[0] ?? "";
}

/** @param {Http.Preset} preset @returns {boolean} whether its sounds have to be fetched */
export function hasSounds(preset) {
  return preset.ref_audio !== null || preset.system_content.some((item) => item.type === "audio");
}

/**
 * @param {Http.Preset} preset
 * @param {Http.PresetSounds | null} sounds null if it has none
 * @param {boolean} isChosen
 * @returns {AppliedPreset}
 */
export function applyPreset(preset, sounds, isChosen) {
  return {
    id: preset.id,
    systemPrompt: preset.system_prompt ?? "",
    voice: voiceFromPreset(preset.ref_audio, sounds?.ref_audio),
    items: contentFromPreset(preset.system_content, sounds?.system_content_audio ?? []),
    settings: flatten(preset.settings ?? {}),
    isChosen,
  };
}

/**
 * Names the values inside of groups as group_name.
 *
 * @param {Record<string, unknown>} settings
 * @returns {Record<string, unknown>}
 */
export function flatten(settings) {
  /** @type {Record<string, unknown>} */
  const flat = {};
  for (const [name, value] of Object.entries(settings)) {
    if (value === null || typeof value !== "object" || Array.isArray(value)) flat[name] = value;
    else for (const [inner, one] of Object.entries(value)) flat[`${name}_${inner}`] = one;
  }
  return flat;
}

/**
 * Which preset to begin with: the one used last, else the first in the visitor's language.
 *
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

/** How ids of presets begin that speak a language. @type {Record<string, string>} */
const LANGUAGE_NAMES = { en: "english", zh: "chinese" };
