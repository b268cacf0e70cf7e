/**
 * Settings, limits and codes of the protocol.
 *
 * Generated from the server's own models by `python -m core.schemas.export`; do not edit.
 */

/** What a session's id must match. */
export const SESSION_ID_PATTERN = /^[A-Za-z0-9_-]{1,64}$/;

/** Sizes and counts the server accepts. */
export const LIMITS = /** @type {const} */ ({
  INPUT_SAMPLE_RATE_HZ: 16000,
  OUTPUT_SAMPLE_RATE_HZ: 24000,
  UNIT_MS: 1000,
  SAMPLE_BYTES: 4,
  MIB: 1048576,
  CHAT_SOCKET_LIMIT_BYTES: 67108864,
  PREPARE_LIMIT_BYTES: 8388608,
  LIVE_SOCKET_LIMIT_BYTES: 2097152,
  EVENT_LIMIT_BYTES: 20971520,
  CHUNK_MAX_S: 2.0,
  REFERENCE_MAX_S: 30.0,
  CHAT_AUDIO_MAX_S: 600.0,
  FRAME_MAX_BYTES: 4194304,
  FRAME_MAX_SIDE_PX: 4096,
  PICTURE_MAX_BYTES: 20971520,
  PICTURE_MAX_SIDE_PX: 16384,
  PICTURE_MAX_PIXELS: 64000000,
  PICTURES_MAX: 64,
  PICTURES_MAX_PIXELS: 192000000,
  MEDIA_MAX_PIXELS: 128000000,
  VIDEO_MAX_BYTES: 50331648,
  TEXT_MAX_CHARS: 200000,
  REPLY_START_MAX_CHARS: 4096,
  MESSAGES_MAX: 1024,
  ITEMS_MAX: 256,
  JSON_VALUES_MAX: 100000,
  FRAMES_PER_MESSAGE_MAX: 64,
  WORKERS_MAX: 1000,
  SLOTS_MAX: 256,
  MAX_SLICES: 16,
  DURATION_MAX_S: 86400.0,
  ID_MAX_CHARS: 128,
  PATH_MAX_CHARS: 4096,
});

/** The `code` of an `error` or a `warning`. */
export const ERROR_CODES = /** @type {const} */ ({
  QUEUE_FULL: "queue_full",
  QUEUE_CANCELLED: "queue_cancelled",
  NO_WORKER: "no_worker",
  SHUTTING_DOWN: "shutting_down",
  WORKER_UNREACHABLE: "worker_unreachable",
  WORKER_LOST: "worker_lost",
  NOT_PREPARED: "not_prepared",
  ALREADY_PREPARED: "already_prepared",
  OUT_OF_ORDER: "out_of_order",
  BAD_JSON: "bad_json",
  BAD_AUDIO: "bad_audio",
  BAD_FRAME: "bad_frame",
  BAD_CONFIG: "bad_config",
  TOO_BIG: "too_big",
  UNKNOWN_TYPE: "unknown_type",
  SESSION_IN_USE: "session_in_use",
  SESSION_EXPIRED: "session_expired",
  INVALID_SESSION_ID: "invalid_session_id",
  TIMEOUT: "timeout",
  LATE_CHUNK: "late_chunk",
  CONTEXT_NEARLY_FULL: "context_nearly_full",
  CONTEXT_FULL: "context_full",
  GENERATION_FAILED: "generation_failed",
  NOT_AVAILABLE: "not_available",
  ONE_VOICE: "one_voice",
  VOICE_CUT: "voice_cut",
  RECORDING_STOPPED: "recording_stopped",
  DISK_FULL: "disk_full",
  ENDED_BY_ADMIN: "ended_by_admin",
  APP_DISABLED: "app_disabled",
  ORIGIN_REFUSED: "origin_refused",
  UNAUTHORIZED: "unauthorized",
  FORBIDDEN: "forbidden",
  RATE_LIMITED: "rate_limited",
  NOT_FOUND: "not_found",
  STILL_WRITING: "still_writing",
  INTERNAL: "internal",
});

/** Close codes of the server. */
export const CLOSE_CODES = /** @type {const} */ ({
  NORMAL: 1000,
  SHUTDOWN: 1001,
  BINARY: 1003,
  BAD_PAYLOAD: 1007,
  POLICY: 1008,
  TOO_BIG: 1009,
  INTERNAL: 1011,
  TRY_LATER: 1013,
  REPLACED: 4001,
});

/** Defaults of DuplexConfig. */
export const DUPLEX_CONFIG_DEFAULTS = /** @type {const} */ ({
  generate_audio: true,
  ls_mode: "explicit",
  force_listen_count: 3,
  max_new_speak_tokens_per_chunk: 20,
  temperature: 0.7,
  top_k: 20,
  top_p: 0.8,
  listen_prob_scale: 1.0,
  chunk_ms: 1000,
  sample_rate: 16000,
  decode_mode: "sampling",
  listen_top_k: null,
  text_repetition_penalty: 1.05,
  text_repetition_window_size: 512,
  length_penalty: 1.1,
  tts_temperature: 0.8,
  max_slice_nums: 1,
});

/** Defaults of Generate. */
export const GENERATE_DEFAULTS = /** @type {const} */ ({
  do_sample: true,
  temperature: 0.7,
  top_p: 0.8,
  top_k: 100,
  length_penalty: 1.1,
  session_id: null,
  generate_audio: true,
  max_new_tokens: 256,
});

/** Ranges of Generate; `above` is exclusive. */
export const GENERATE_RANGES = /** @type {const} */ ({
  temperature: {"min": 0, "max": 2},
  top_p: {"above": 0, "max": 1},
  top_k: {"min": 0, "max": 200000},
  length_penalty: {"min": 0.1, "max": 5},
  max_new_tokens: {"min": 1, "max": 4096},
});
