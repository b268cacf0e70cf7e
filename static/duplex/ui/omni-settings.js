// @ts-check
/** The settings of the video call, beside those of every live page and of the model. */

import { MAX_TRIM_DB, PADDING_MAX_S } from "../lib/capture-format.js";
import { DUPLEX_FIELDS } from "./call-setup.js";
import { LIVE_FIELDS } from "./live-settings.js";

/** @import { BooleanField, ChoiceField, NumberField, SettingsStore } from "../../shared/settings-store.js" */
/** @import { MixMode } from "../lib/mixer-controller.js" */
/** @import { SubtitleLook } from "../lib/subtitle-text.js" */
/** @import { MixSettings } from "../lib/video-file.js" */

const LENGTH_PENALTY = 1.1;
const HD_SLICES = 2;

/** @param {number} initial @param {number} min @param {number} max @param {number} step @returns {NumberField} */
const number = (initial, min, max, step) => ({ type: "number", initial, min, max, step });
/** @param {boolean} initial @returns {BooleanField} */
const flag = (initial) => ({ type: "boolean", initial });
/** @param {string} initial @param {readonly string[]} choices @returns {ChoiceField} */
const choice = (initial, choices) => ({ type: "choice", initial, choices });

export const OMNI_FIELDS = Object.freeze({
  ...LIVE_FIELDS,
  ...DUPLEX_FIELDS,
  length_penalty: { ...DUPLEX_FIELDS.length_penalty, initial: LENGTH_PENALTY },
  record: flag(false),
  source: choice("live", ["live", "file"]),
  file_sound: choice("file", ["file", "microphone", "both"]),
  pad_before_s: number(0, 0, PADDING_MAX_S, 1),
  pad_after_s: number(2, 0, PADDING_MAX_S, 1),
  file_volume: number(30, 0, 100, 5),
  monitor_volume: number(50, 0, 100, 5),
  trim_file_db: number(0, -MAX_TRIM_DB, MAX_TRIM_DB, 1),
  trim_microphone_db: number(0, -MAX_TRIM_DB, MAX_TRIM_DB, 1),
  mirror: flag(true),
  hd: flag(false),
  subtitles: flag(true),
  subtitle_height: number(25, 10, 60, 5),
  subtitle_bottom: number(90, 20, 100, 5),
  subtitle_top: number(15, 0, 100, 5),
});

/** @typedef {SettingsStore<typeof OMNI_FIELDS>} OmniStore */

/** @param {OmniStore} store @returns {SubtitleLook} */
export function subtitleLookOf(store) {
  return {
    isOn: store.get("subtitles"),
    heightPercent: store.get("subtitle_height"),
    bottomPercent: store.get("subtitle_bottom"),
    topPercent: store.get("subtitle_top"),
  };
}

/** @param {OmniStore} store tiles a picture is cut into at most */
export function sliceCountOf(store) {
  return store.get("hd") ? HD_SLICES : 1;
}

/**
 * @param {OmniStore} store
 * @param {number} microphoneLufs as measured; -Infinity if it was not
 * @param {"file_volume" | "monitor_volume"} volume
 * @returns {MixSettings}
 */
export function mixSettingsOf(store, microphoneLufs, volume) {
  return {
    mode: /** @type {MixMode} */ (store.get("file_sound")),
    trimFileDb: store.get("trim_file_db"),
    trimMicrophoneDb: store.get("trim_microphone_db"),
    microphoneLufs,
    volume: store.get(volume) / 100,
  };
}
