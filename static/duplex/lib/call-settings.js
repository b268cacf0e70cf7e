/** Settings of the calls: fields with their limits, and their conversion to session options. Pure. */

import { DUPLEX_CONFIG_DEFAULTS as GIVEN } from "../../shared/protocol.js";
import { choiceField, flagField, numberField } from "../../shared/settings-store.js";
import { MAX_TRIM_DB, PADDING_MAX_S } from "./capture-format.js";

/** @import { DuplexConfig } from "../../../types/protocol.js" */
/** @import { SettingsStore } from "../../shared/settings-store.js" */
/** @import { MixMode } from "./mixer-controller.js" */

/** Fields of `DuplexConfig` with the server's limits. */
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

export function duplexConfigOf(/** @type {{get: (name: DuplexSetting) => unknown}} */ store) {
  const names = /** @type {DuplexSetting[]} */ (Object.keys(DUPLEX_FIELDS));
  return Object.fromEntries(names.map((name) => [name, store.get(name)]));
}

/** Settings of both full-duplex pages besides the model's. */
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

export function liveSettingsOf(/** @type {{get: (name: LiveSetting) => unknown}} */ store, /** @type {string} */ speakerId) {
  return {
    maxKvTokens: Number(store.get("max_kv_tokens")),
    playbackDelayMs: Number(store.get("playback_delay_ms")),
    isAutoPauseOn: store.get("auto_pause") === true,
    isBargeInOn: store.get("barge_in") === true,
    speakerId,
  };
}

// Settings of the video call.

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

/** @typedef {ReturnType<typeof subtitleLookOf>} SubtitleLook */

export function subtitleLookOf(/** @type {OmniStore} */ store) {
  return {
    isOn: store.get("subtitles"),
    heightPercent: store.get("subtitle_height"), // of the picture
    bottomPercent: store.get("subtitle_bottom"), // opacity of the newest line
    topPercent: store.get("subtitle_top"), // opacity of the oldest line
  };
}

/** @param {OmniStore} store maximum number of slices per picture */
export const sliceCountOf = (store) => (store.get("hd") ? HD_SLICES : 1);

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

// Half duplex.

/** Source of the limits: docs/specification/service.md#7.6. */
export const HALF_FIELDS = Object.freeze({
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

export function halfConfigOf(/** @type {SettingsStore<typeof HALF_FIELDS>} */ store) {
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
