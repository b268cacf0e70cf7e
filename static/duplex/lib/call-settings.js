// @ts-check
/** The settings of the calls: fields with their limits, and what a session takes of them. Pure. */

import { DUPLEX_CONFIG_DEFAULTS as GIVEN } from "../../shared/protocol.js";
import { choiceField, flagField, numberField } from "../../shared/settings-store.js";
import { MAX_TRIM_DB, PADDING_MAX_S } from "./capture-format.js";

/** @import { DuplexConfig } from "../../../types/protocol.js" */
/** @import { SettingsStore } from "../../shared/settings-store.js" */
/** @import { LiveSettings } from "../../../types/duplex.js" */
/** @import { MixMode } from "./mixer-controller.js" */
/** @import { SubtitleLook } from "./subtitle-text.js" */

/** What the server accepts, by the names of `DuplexConfig`. */
export const DUPLEX_FIELDS = Object.freeze({
  length_penalty: numberField(GIVEN.length_penalty, 0.5, 2, 0.05),
  force_listen_count: numberField(GIVEN.force_listen_count, 0, 20, 1),
  max_new_speak_tokens_per_chunk: numberField(GIVEN.max_new_speak_tokens_per_chunk, 1, 100, 1),
  listen_prob_scale: numberField(GIVEN.listen_prob_scale, 0.1, 3, 0.05),
  temperature: numberField(GIVEN.temperature, 0, 2, 0.05),
  top_k: numberField(GIVEN.top_k, 0, 200, 1),
  top_p: numberField(GIVEN.top_p, 0.05, 1, 0.05),
  text_repetition_penalty: numberField(GIVEN.text_repetition_penalty, 0.5, 2, 0.01),
  tts_temperature: numberField(GIVEN.tts_temperature, 0, 2, 0.05),
  decode_mode: choiceField(GIVEN.decode_mode, ["sampling", "greedy"]),
  generate_audio: flagField(GIVEN.generate_audio),
});

/** @typedef {keyof typeof DUPLEX_FIELDS} DuplexSetting */

/** @param {{get: (name: DuplexSetting) => unknown}} store @returns {DuplexConfig} */
export function duplexConfigOf(store) {
  const names = /** @type {DuplexSetting[]} */ (Object.keys(DUPLEX_FIELDS));
  return Object.fromEntries(names.map((name) => [name, store.get(name)]));
}

/** What both pages of full duplex have beside the settings of the model. */
export const LIVE_FIELDS = Object.freeze({
  playback_delay_ms: numberField(200, 0, 2_000, 50),
  max_kv_tokens: numberField(8_192, 256, 40_960, 256),
  headphones: flagField(false),
  barge_in: flagField(true),
  barge_gate: choiceField("energy", ["energy", "silero"]),
  auto_pause: flagField(true),
  record: flagField(true),
  captions: flagField(false),
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

// The video call, beside those of every full-duplex page.

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

/** @param {OmniStore} store @param {number} microphoneLufs @param {"file_volume" | "monitor_volume"} volume */
export function mixSettingsOf(store, microphoneLufs, volume) {
  return {
    mode: /** @type {MixMode} */ (store.get("file_sound")),
    trimFileDb: store.get("trim_file_db"),
    trimMicrophoneDb: store.get("trim_microphone_db"),
    microphoneLufs,
    volume: store.get(volume) / 100,
  };
}
