// @ts-check
/** The settings of the half-duplex page: fields with their limits, and what a session takes of them. Pure. */

import { SettingsStore, flagField, numberField } from "../../shared/settings-store.js";

/** @import { SmallStorage } from "../../shared/memory.js" */
/** @import { HalfDuplexConfig } from "../../../types/protocol.js" */

const STORAGE_KEY = "half_duplex_settings";
/** Source of the limits: docs/specification/service.md#7.6. */
const HALF_FIELDS = Object.freeze({
  vad_threshold: numberField(0.8, 0.1, 0.95, 0.05),
  vad_min_silence_duration_ms: numberField(800, 200, 3_000, 50),
  vad_min_speech_duration_ms: numberField(128, 0, 1_024, 32),
  vad_speech_pad_ms: numberField(30, 0, 500, 10),
  max_new_tokens: numberField(256, 1, 2_048, 1),
  length_penalty: numberField(1.1, 0.1, 5, 0.05),
  temperature: numberField(0.7, 0, 2, 0.05),
  timeout_s: numberField(180, 30, 600, 10),
  has_voice: flagField(true),
  captions: flagField(false),
});

/** @param {SmallStorage | null} storage @param {Record<string, unknown>} serverValues */
export function makeHalfSettings(storage, serverValues) {
  const store = new SettingsStore(STORAGE_KEY, HALF_FIELDS, storage);
  store.applyServer(serverValues);
  return {
    store,
    /**
     * One that the page opens with stands behind the visitor's own choices.
     * @param {Record<string, unknown>} preset
     * @param {boolean} isChosen
     */
    applyPreset(preset, isChosen) {
      if (isChosen) store.applyPreset(preset);
      else store.applyServer({ ...serverValues, ...preset });
    },
  };
}

/** @param {SettingsStore<typeof HALF_FIELDS>} store @returns {HalfDuplexConfig} */
export function halfConfigOf(store) {
  return {
    vad: {
      threshold: store.get("vad_threshold"),
      min_speech_duration_ms: store.get("vad_min_speech_duration_ms"),
      min_silence_duration_ms: store.get("vad_min_silence_duration_ms"),
      speech_pad_ms: store.get("vad_speech_pad_ms"),
    },
    generation: {
      max_new_tokens: store.get("max_new_tokens"),
      length_penalty: store.get("length_penalty"),
      temperature: store.get("temperature"),
    },
    tts: { enabled: store.get("has_voice") },
    session: { timeout_s: store.get("timeout_s") },
  };
}
