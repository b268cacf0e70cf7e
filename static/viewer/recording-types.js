// @ts-check
/** What the server says of a recording. Source: `recording/records.py`. Pure. */

/**
 * @typedef {Object} Meta
 * @property {string} session_id
 * @property {string} app_type
 * @property {string} created_at
 * @property {string} [ended_at]
 * @property {number} [duration_s]
 * @property {string} [worker_id]
 * @property {Record<string, unknown>} [config]
 * @property {string} [end_reason]
 * @property {"recording" | "finalizing" | "ready" | "failed"} status
 * @property {number} [size_bytes]
 * @property {string} [problem]
 * @property {number} [files_left_out]
 * @property {string} [model]
 * @property {string} [browser_recording] name of what a browser recorded and uploaded
 *
 * @typedef {Object} UnitTiming
 * @property {number} [prefill_ms]
 * @property {number} [llm_ms]
 * @property {number} [tts_prep_ms]
 * @property {number} [tts_ms]
 * @property {number} [token2wav_ms]
 * @property {number} [all_ms]
 * @property {number} [wall_clock_ms]
 * @property {number} [n_tokens]
 * @property {number} [kv_cache_length]
 * @property {number} [vision_tokens]
 *
 * @typedef {Object} ChunkResult
 * @property {"LISTEN" | "SPEAK"} mode
 * @property {UnitTiming} [timing]
 * @property {string} [text]
 * @property {string} [ai_audio]
 * @property {number} [ai_audio_duration_ms]
 * @property {boolean} [end_of_turn]
 * @property {boolean} [barge_in]
 * @property {number} [turn]
 *
 * @typedef {Object} Chunk
 * @property {number} index
 * @property {number} [receive_ts_ms]
 * @property {string} [user_audio]
 * @property {number} [user_audio_duration_ms]
 * @property {string} [user_frame]
 * @property {string[]} [extra_frames]
 * @property {ChunkResult} [result]
 *
 * @typedef {Object} TurnInput
 * @property {"voice"} [type]
 * @property {string} [text]
 * @property {string[]} [images]
 * @property {string} [audio]
 * @property {string[]} [more_audio]
 * @property {string[]} [videos]
 * @property {number} [duration_ms]
 * @property {string} [transcript] what was said in the sound
 *
 * @typedef {Object} TurnTiming
 * @property {number} [elapsed_ms]
 * @property {number} [tokens]
 * @property {number} [input_tokens]
 * @property {number} [cached_tokens]
 * @property {number} [total_tokens]
 * @property {number} [speech_input_ms]
 * @property {number} [first_audio_ms]
 *
 * @typedef {Object} Turn
 * @property {number} turn_index
 * @property {number} [request_ts_ms]
 * @property {TurnInput} [input]
 * @property {{text?: string, audio?: string, audio_duration_ms?: number}} [output]
 * @property {TurnTiming} [timing]
 * @property {boolean} [interrupted]
 *
 * @typedef {Object} Recording
 * @property {string} session_id
 * @property {string} mode "duplex", or the app_type of a turn-based one
 * @property {string} start_ts
 * @property {Record<string, unknown>} [config]
 * @property {{ts_ms: number, type: string, text?: string, duration_ms?: number, turn_index?: number}[]} [events]
 * @property {string} [merged_replay]
 * @property {string} [merged_replay_video]
 * @property {string} [merged_replay_subtitles]
 * @property {"session" | "logical"} [merged_replay_timing]
 * @property {Chunk[]} [chunks]
 * @property {Turn[]} [turns]
 */

/** Which page of ours a kind of conversation belongs to. */
const PAGE_OF = Object.freeze({ chat: "turnbased", streaming: "turnbased", omni_duplex: "omni" });

/** @param {string} appType of a recording @returns {string} the app's id, for titles and icons */
export function appOf(appType) {
  return Object.entries(PAGE_OF).find(([type]) => type === appType)?.[1] ?? appType;
}

/** Where a file of a recording is. @param {string} recordingId @param {string} path as the recording names it */
export function assetUrl(recordingId, path) {
  const inside = path.split("/").map(encodeURIComponent).join("/");
  return `/api/sessions/${encodeURIComponent(recordingId)}/assets/${inside}`;
}
