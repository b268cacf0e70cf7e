// @ts-check
/** The settings of the video call, beside those of every full-duplex page. Pure. */

import { choiceField, flagField, numberField } from "../../shared/settings-store.js";
import { DUPLEX_FIELDS, LIVE_FIELDS } from "./call-settings.js";
import { MAX_TRIM_DB, PADDING_MAX_S } from "./capture-format.js";

/** @import { SettingsStore } from "../../shared/settings-store.js" */
/** @import { MixMode } from "./mixer-controller.js" */
/** @import { SubtitleLook } from "./subtitle-text.js" */
/** @import { MixSettings } from "./video-file.js" */

const LENGTH_PENALTY = 1.1;
const HD_SLICES = 2;

export const OMNI_FIELDS = Object.freeze({
  ...LIVE_FIELDS,
  ...DUPLEX_FIELDS,
  length_penalty: { ...DUPLEX_FIELDS.length_penalty, initial: LENGTH_PENALTY },
  record: flagField(false),
  source: choiceField("live", ["live", "file"]),
  file_sound: choiceField("file", ["file", "microphone", "both"]),
  pad_before_s: numberField(0, 0, PADDING_MAX_S, 1),
  pad_after_s: numberField(2, 0, PADDING_MAX_S, 1),
  file_volume: numberField(30, 0, 100, 5),
  monitor_volume: numberField(50, 0, 100, 5),
  trim_file_db: numberField(0, -MAX_TRIM_DB, MAX_TRIM_DB, 1),
  trim_microphone_db: numberField(0, -MAX_TRIM_DB, MAX_TRIM_DB, 1),
  mirror: flagField(true),
  hd: flagField(false),
  subtitles: flagField(true),
  subtitle_height: numberField(25, 10, 60, 5),
  subtitle_bottom: numberField(90, 20, 100, 5),
  subtitle_top: numberField(15, 0, 100, 5),
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
