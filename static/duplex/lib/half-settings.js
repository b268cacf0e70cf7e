// @ts-check
/** The settings of the half-duplex page and their limits. Pure. */

import { SettingsStore } from "../../shared/settings-store.js";

const STORAGE_KEY = "half_duplex_settings";

/** Source of the limits: docs/specification/service.md#7.6. */
const HALF_FIELDS = Object.freeze({
  vad_threshold: { type: /** @type {const} */ ("number"), initial: 0.8, min: 0.1, max: 0.95, step: 0.05 },
  vad_min_silence_duration_ms: { type: /** @type {const} */ ("number"), initial: 800, min: 200, max: 3_000, step: 50 },
  vad_min_speech_duration_ms: { type: /** @type {const} */ ("number"), initial: 128, min: 0, max: 1_024, step: 32 },
  vad_speech_pad_ms: { type: /** @type {const} */ ("number"), initial: 30, min: 0, max: 500, step: 10 },
  max_new_tokens: { type: /** @type {const} */ ("number"), initial: 256, min: 1, max: 2_048, step: 1 },
  length_penalty: { type: /** @type {const} */ ("number"), initial: 1.1, min: 0.1, max: 5, step: 0.05 },
  temperature: { type: /** @type {const} */ ("number"), initial: 0.7, min: 0, max: 2, step: 0.05 },
  timeout_s: { type: /** @type {const} */ ("number"), initial: 180, min: 30, max: 600, step: 10 },
  has_voice: { type: /** @type {const} */ ("boolean"), initial: true },
  captions: { type: /** @type {const} */ ("boolean"), initial: false },
});

/** @typedef {keyof typeof HALF_FIELDS} HalfSettingName */

/**
 * @param {Pick<Storage, "getItem" | "setItem" | "removeItem"> | null} storage
 * @param {Record<string, unknown>} serverValues of `/api/frontend_defaults`
 */
export function makeHalfSettings(storage, serverValues) {
  const store = new SettingsStore(STORAGE_KEY, HALF_FIELDS, storage);
  store.applyServer(serverValues);
  return {
    store,
    /** @returns {Record<HalfSettingName, string | number | boolean>} */
    values() {
      const names = /** @type {HalfSettingName[]} */ (Object.keys(HALF_FIELDS));
      return /** @type {Record<HalfSettingName, string | number | boolean>} */ (
        Object.fromEntries(names.map((name) => [name, store.get(name)]))
      );
    },
    /**
     * Takes over what a preset sets. One that the page opens with stands behind the visitor's own choices.
     * @param {Record<string, unknown>} preset
     * @param {boolean} isChosen
     */
    applyPreset(preset, isChosen) {
      if (isChosen) store.applyPreset(preset);
      else store.applyServer({ ...serverValues, ...preset });
    },
  };
}
