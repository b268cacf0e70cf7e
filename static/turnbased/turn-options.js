/** Settings of the chat page, and their conversion to protocol fields. Pure. */

import { GENERATE_DEFAULTS, GENERATE_RANGES } from "../shared/protocol.js";
import { choiceField, flagField, numberField } from "../shared/settings-store.js";

/** @import { Generate, Message, Prefill } from "../../types/protocol.js" */
/** @import { SettingsStore } from "../shared/settings-store.js" */
/** @import { ChatSettings } from "../../types/chat.js" */

/** The user's settings; omitted ones take the server's default. `voiceBase64`: float32 at 16 kHz, at most 30 s.
 * @typedef {Partial<{[N in keyof typeof TURN_FIELDS]: (typeof TURN_FIELDS)[N]["initial"]}> & {voiceBase64?: string | null}} TurnSettings
 */

/** @typedef {{prefill: Omit<Prefill, "type" | "messages">, generate: Omit<Generate, "type">}} TurnOptions */

const SLICES = 1;
const SLICES_HD = 2;

/**
 * A video interleaves frames and audio, so high-resolution pictures are not possible.
 * @param {TurnSettings} settings
 * @param {readonly Message[]} messages
 */
export function turnOptions(settings, messages) {
  const hasVoice = settings.hasVoice ?? false;
  const isOmni = messages.some(hasVideo);
  return {
    prefill: {
      max_slice_nums: settings.isHd && !isOmni ? SLICES_HD : SLICES,
      omni_mode: isOmni,
      use_tts_template: hasVoice,
      enable_thinking: settings.isThinking ?? false,
      ...(settings.hasCaptions && { transcribe: true }),
      ...(hasVoice && settings.voiceBase64 && { tts_ref_audio_base64: settings.voiceBase64 }),
    },
    generate: { generate_audio: hasVoice, ...sampling(settings) },
  };
}

/** @param {readonly Message[]} messages @param {TurnOptions} options @returns {Record<string, unknown>} */
export function chatRequest(messages, { prefill, generate }) {
  const { generate_audio: hasVoice, ...generation } = generate;
  const mode = prefill.omni_mode ? "omni" : "audio_assistant";
  return {
    messages,
    generation,
    image: { max_slice_nums: prefill.max_slice_nums },
    tts: { enabled: hasVoice, mode, ref_audio_data: prefill.tts_ref_audio_base64 ?? null },
    use_tts_template: prefill.use_tts_template,
    omni_mode: prefill.omni_mode,
    enable_thinking: prefill.enable_thinking,
  };
}

/** @param {TurnSettings} settings @returns {Omit<Generate, "type" | "generate_audio">} */
function sampling(settings) {
  const defaults = GENERATE_DEFAULTS;
  return {
    max_new_tokens: clamped("max_new_tokens", settings.maxNewTokens ?? defaults.max_new_tokens),
    length_penalty: clamped("length_penalty", settings.lengthPenalty ?? defaults.length_penalty),
    temperature: clamped("temperature", settings.temperature ?? defaults.temperature),
    ...(settings.topP !== undefined && settings.topP > 0 && { top_p: Math.min(1, settings.topP) }),
    ...(settings.topK !== undefined && { top_k: clamped("top_k", settings.topK) }),
    ...(settings.isGreedy && { do_sample: false }),
  };
}

/** @param {"max_new_tokens" | "length_penalty" | "temperature" | "top_k"} name @param {number} value @returns {number} */
function clamped(name, value) {
  const { min, max } = GENERATE_RANGES[name];
  if (!Number.isFinite(value)) return GENERATE_DEFAULTS[name];
  const within = Math.min(max, Math.max(min, value));
  return Number.isInteger(GENERATE_DEFAULTS[name]) ? Math.round(within) : within;
}

/** @param {Message} message @returns {boolean} */
function hasVideo(message) {
  return Array.isArray(message.content) && message.content.some((item) => item.type === "video");
}

// Settings of the chat page.

export const SETTINGS_KEY = "turnbased_settings";

const TURN_FIELDS = Object.freeze({
  hasVoice: flagField(false), // the answer is spoken
  isHd: flagField(false), // pictures are split into slices
  isThinking: flagField(false), // the model thinks before it answers
  hasCaptions: flagField(false), // questions are transcribed
  isGreedy: flagField(false), // always the likeliest token
  maxNewTokens: numberField(256, 1, 2048, 1),
  lengthPenalty: numberField(1.1, 0.1, 5, 0.05),
  temperature: numberField(0.7, 0, 2, 0.05),
  topP: numberField(0.8, 0.05, 1, 0.05),
  topK: numberField(100, 0, 1000, 1),
});

export const FIELDS = Object.freeze({
  ...TURN_FIELDS,
  isStreaming: flagField(true),
  sendsRecording: flagField(false),
  picturesPerS: choiceField("1", ["1", "2", "4"]),
});

/** Names of the settings in presets. @type {Readonly<Record<string, keyof typeof FIELDS>>} */
const PRESET_NAMES = Object.freeze({
  length_penalty: "lengthPenalty",
  max_new_tokens: "maxNewTokens",
  temperature: "temperature",
  top_p: "topP",
  top_k: "topK",
  hd: "isHd",
  voice: "hasVoice",
});

/** @param {Record<string, unknown>} settings of a preset @returns {Record<string, unknown>} */
export function fromPreset(settings) {
  /** @type {Record<string, unknown>} */ const known = {};
  for (const [name, value] of Object.entries(settings)) {
    const field = PRESET_NAMES[name];
    if (field) known[field] = value;
  }
  return known;
}

/** @param {SettingsStore<typeof FIELDS>} store @param {string | null} voiceBase64 @returns {ChatSettings} */
export function chatSettings(store, voiceBase64) {
  const names = /** @type {(keyof typeof TURN_FIELDS)[]} */ (Object.keys(TURN_FIELDS));
  return {
    isStreaming: store.get("isStreaming"),
    picturesPerS: Number(store.get("picturesPerS")),
    turn: { ...Object.fromEntries(names.map((name) => [name, store.get(name)])), voiceBase64 },
  };
}
