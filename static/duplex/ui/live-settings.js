// @ts-check
/** The settings both live pages have, beside those of the model. */

/** @import { BooleanField, ChoiceField, NumberField } from "../../shared/settings-store.js" */
/** @import { LiveSettings } from "../lib/duplex-types.js" */

/** @param {boolean} initial @returns {BooleanField} */
const flag = (initial) => ({ type: "boolean", initial });

export const LIVE_FIELDS = Object.freeze({
  playback_delay_ms: /** @type {NumberField} */ ({ type: "number", initial: 200, min: 0, max: 2_000, step: 50 }),
  max_kv_tokens: /** @type {NumberField} */ ({ type: "number", initial: 8_192, min: 256, max: 40_960, step: 256 }),
  headphones: flag(false),
  barge_in: flag(true),
  barge_gate: /** @type {ChoiceField} */ ({ type: "choice", initial: "energy", choices: ["energy", "silero"] }),
  auto_pause: flag(true),
  record: flag(true),
  captions: flag(false),
});

/** @typedef {keyof typeof LIVE_FIELDS} LiveSetting */

/** @param {{get: (name: LiveSetting) => unknown}} store @param {string} speakerId @returns {LiveSettings} */
export function liveSettingsOf(store, speakerId) {
  return {
    maxKvTokens: Number(store.get("max_kv_tokens")),
    playbackDelayMs: Number(store.get("playback_delay_ms")),
    isAutoPauseOn: store.get("auto_pause") === true,
    isBargeInOn: store.get("barge_in") === true,
    speakerId,
  };
}
