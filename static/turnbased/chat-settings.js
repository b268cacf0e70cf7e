// @ts-check
/**
 * What can be set on the chat page, and the turn's settings made of it. Pure.
 */

/** @typedef {import("../shared/settings-store.js").Field} Field */

export const SETTINGS_KEY = "turnbased_settings";

export const FIELDS = Object.freeze({
  isStreaming: /** @type {const} */ ({ type: "boolean", initial: true }),
  hasVoice: /** @type {const} */ ({ type: "boolean", initial: false }),
  isHd: /** @type {const} */ ({ type: "boolean", initial: false }),
  isThinking: /** @type {const} */ ({ type: "boolean", initial: false }),
  sendsRecording: /** @type {const} */ ({ type: "boolean", initial: false }),
  hasCaptions: /** @type {const} */ ({ type: "boolean", initial: false }),
  isGreedy: /** @type {const} */ ({ type: "boolean", initial: false }),
  maxNewTokens: { type: /** @type {const} */ ("number"), initial: 256, min: 1, max: 2048, step: 1 },
  lengthPenalty: { type: /** @type {const} */ ("number"), initial: 1.1, min: 0.1, max: 5, step: 0.05 },
  temperature: { type: /** @type {const} */ ("number"), initial: 0.7, min: 0, max: 2, step: 0.05 },
  topP: { type: /** @type {const} */ ("number"), initial: 0.8, min: 0.05, max: 1, step: 0.05 },
  topK: { type: /** @type {const} */ ("number"), initial: 100, min: 0, max: 1000, step: 1 },
  picturesPerS: { type: /** @type {const} */ ("choice"), initial: "1", choices: ["1", "2", "4"] },
});

/** What presets call the same things. @type {Readonly<Record<string, keyof typeof FIELDS>>} */
const PRESET_NAMES = Object.freeze({
  length_penalty: "lengthPenalty",
  max_new_tokens: "maxNewTokens",
  temperature: "temperature",
  top_p: "topP",
  top_k: "topK",
  hd: "isHd",
  voice: "hasVoice",
});

/**
 * @param {Record<string, unknown>} settings of a preset
 * @returns {Record<string, unknown>}
 */
export function fromPreset(settings) {
  /** @type {Record<string, unknown>} */
  const known = {};
  for (const [name, value] of Object.entries(settings)) {
    const field = PRESET_NAMES[name];
    if (field) known[field] = value;
  }
  return known;
}

/**
 * @param {import("../shared/settings-store.js").SettingsStore<typeof FIELDS>} store
 * @param {string | null} voiceBase64
 * @returns {import("./chat-session.js").ChatSettings}
 */
export function chatSettings(store, voiceBase64) {
  return {
    isStreaming: store.get("isStreaming"),
    picturesPerS: Number(store.get("picturesPerS")),
    turn: {
      hasVoice: store.get("hasVoice"),
      isHd: store.get("isHd"),
      isThinking: store.get("isThinking"),
      hasCaptions: store.get("hasCaptions"),
      isGreedy: store.get("isGreedy"),
      maxNewTokens: store.get("maxNewTokens"),
      lengthPenalty: store.get("lengthPenalty"),
      temperature: store.get("temperature"),
      topP: store.get("topP"),
      topK: store.get("topK"),
      voiceBase64,
    },
  };
}
