/** What the server says of a recording. Source: `recording/records.py`. */

export type Meta = {
  session_id: string;
  app_type: string;
  created_at: string;
  ended_at?: string;
  duration_s?: number;
  worker_id?: string;
  config?: Record<string, unknown>;
  end_reason?: string;
  status: "recording" | "finalizing" | "ready" | "failed";
  size_bytes?: number;
  problem?: string;
  files_left_out?: number;
  model?: string;
  browser_recording?: string; // name of what a browser recorded and uploaded
};

export type UnitTiming = {
  prefill_ms?: number;
  llm_ms?: number;
  tts_prep_ms?: number;
  tts_ms?: number;
  token2wav_ms?: number;
  all_ms?: number;
  wall_clock_ms?: number;
  kv_cache_length?: number;
};

export type ChunkResult = {
  mode: "LISTEN" | "SPEAK";
  timing?: UnitTiming;
  text?: string;
  ai_audio?: string;
  ai_audio_duration_ms?: number;
  end_of_turn?: boolean;
  barge_in?: boolean;
};

export type Chunk = {
  index: number;
  receive_ts_ms?: number;
  sent_ts_ms?: number;
  user_audio?: string;
  user_audio_duration_ms?: number;
  user_frame?: string;
  extra_frames?: string[];
  result?: ChunkResult;
};

export type TurnInput = {
  text?: string;
  images?: string[];
  audio?: string;
  more_audio?: string[];
  videos?: string[];
  duration_ms?: number;
  transcript?: string; // what was said in the sound
};

export type TurnTiming = {
  elapsed_ms?: number;
  tokens?: number;
  input_tokens?: number;
  cached_tokens?: number;
  total_tokens?: number;
  first_audio_ms?: number;
};

export type Turn = {
  turn_index: number;
  request_ts_ms?: number;
  input?: TurnInput;
  output?: {text?: string; audio?: string; audio_duration_ms?: number};
  timing?: TurnTiming;
  interrupted?: boolean;
};

export type Recording = {
  session_id: string;
  mode: string; // "duplex", or the app_type of a turn-based one
  config?: Record<string, unknown>;
  events?: {ts_ms: number; type: string; text?: string; duration_ms?: number; turn_index?: number}[];
  merged_replay?: string;
  merged_replay_video?: string;
  merged_replay_subtitles?: string;
  merged_replay_timing?: "session" | "logical";
  chunks?: Chunk[];
  turns?: Turn[];
};
