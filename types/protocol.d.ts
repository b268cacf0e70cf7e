// Messages and settings of the protocol, from the server's own models. Written by `make protocol`.

/** An audio clip. */
export type AudioContent = {
  /** Content type. */
  type: "audio";
  /** Base64 of little-endian float32 samples, mono, 16 kHz, at most 10 min. */
  data: string;
  /** Samples per second; must be 16000. */
  sample_rate?: number;
};

/** The server interrupts the model when it detects the user's speech. */
export type BargeInConfig = {
  /** Probability at which speech begins; lower is more sensitive. */
  threshold?: number;
  /** Shorter bursts are ignored, ms. */
  min_speech_duration_ms?: number;
};

/** All settings of one duplex session. */
export type DuplexConfig = {
  /** Speak; false: text only. */
  generate_audio?: boolean;
  /** How the model decides to listen or speak; must be explicit. */
  ls_mode?: "explicit";
  /** Initial units in which the model must listen. */
  force_listen_count?: number;
  /** Most steps of one unit: the decision to listen or to speak, tokens of text, and the end of the unit. At most N - 2 tokens are spoken, at least one is allowed. */
  max_new_speak_tokens_per_chunk?: number;
  /** Higher is more varied; 0 takes the likeliest token. */
  temperature?: number;
  /** Candidates kept; 0 keeps all. */
  top_k?: number;
  /** Nucleus: probability mass kept. */
  top_p?: number;
  /** Above 1 the model speaks less, below 1 more. */
  listen_prob_scale?: number;
  /** Length of one unit and of each audio_chunk, ms; must be 1000. */
  chunk_ms?: number;
  /** Samples per second of the audio sent; must be 16000. */
  sample_rate?: number;
  /** Sample, or take the most likely token. */
  decode_mode?: "sampling" | "greedy";
  /** Listen if listening is among the k most likely tokens. */
  listen_top_k?: number | null;
  /** Above 1 discourages tokens spoken before. */
  text_repetition_penalty?: number;
  /** Tokens considered by the repetition penalty. */
  text_repetition_window_size?: number;
  /** Above 1 makes replies longer and harder to interrupt. */
  length_penalty?: number;
  /** Variation of the voice; 0 takes the most likely token. */
  tts_temperature?: number;
  /** Most tiles per picture. */
  max_slice_nums?: number;
};

/** The `code` of an `error` or `warning` message. */
export type ErrorCode = "queue_full" | "queue_cancelled" | "no_worker" | "shutting_down" | "worker_unreachable" | "worker_lost" | "not_prepared" | "already_prepared" | "out_of_order" | "bad_json" | "bad_audio" | "bad_frame" | "bad_config" | "too_big" | "unknown_type" | "session_in_use" | "session_expired" | "invalid_session_id" | "timeout" | "late_chunk" | "context_nearly_full" | "context_full" | "generation_failed" | "not_available" | "one_voice" | "voice_cut" | "recording_stopped" | "disk_full" | "ended_by_admin" | "app_disabled" | "origin_refused" | "unauthorized" | "forbidden" | "rate_limited" | "not_found" | "still_writing" | "internal";

/** Generation of a reply's text. */
export type GenerationConfig = {
  /** Draw at random; false takes the likeliest token. */
  do_sample?: boolean;
  /** Higher is more varied; 0 takes the likeliest token. */
  temperature?: number;
  /** Nucleus: probability mass kept. */
  top_p?: number;
  /** Candidates kept; 0 keeps all. */
  top_k?: number;
  /** Above 1 makes replies longer, below 1 shorter. */
  length_penalty?: number;
  /** Most tokens of the reply. */
  max_new_tokens?: number;
  /** Fewest tokens of the reply. */
  min_new_tokens?: number;
  /** Most tokens of the prompt; the rest is cut. */
  max_inp_length?: number;
};

/** All settings of one half-duplex session. */
export type HalfDuplexConfig = {
  /** Voice activity detection. */
  vad?: VadConfig;
  /** Generation of the text. */
  generation?: TurnGenerationConfig;
  /** Whether replies are spoken. */
  tts?: TurnSpeechConfig;
  /** Time-out of the session. */
  session?: SessionConfig;
};

/** How pictures are split into tiles. */
export type ImageConfig = {
  /** Most tiles per picture, 1 to 16; null leaves it to the model. */
  max_slice_nums?: number | null;
  /** Number the pictures in the prompt. */
  use_image_id?: boolean;
};

/** A picture. */
export type ImageContent = {
  /** Content type. */
  type: "image";
  /** Base64 of an encoded picture (JPEG, PNG, WebP, GIF, BMP or TIFF). */
  data: string;
};

/** A message of one party. */
export type Message = {
  /** Its author. */
  role: Role;
  /** A text, or a list of text, image, audio and video items in order. */
  content: string | Array<TextContent | ImageContent | AudioContent | VideoContent>;
};

/** Author of a message. */
export type Role = "system" | "user" | "assistant";

/** Time-out of the session. */
export type SessionConfig = {
  /** Ends after this long without an audio_chunk, s. */
  timeout_s?: number;
};

/** Speech of a streamed reply. */
export type StreamingConfig = {
  /** Speak the reply. */
  generate_audio?: boolean;
  /** Voice sample as a file of the server; library use only. */
  ref_audio_path?: string | null;
  /** Voice sample, Base64 of float32 at 16 kHz, at most 30 s. */
  ref_audio_data?: string | null;
  /** Sampling of speech tokens. */
  tts_sampling?: TTSSamplingParams;
};

/** Whether and with which voice a reply is spoken. */
export type TTSConfig = {
  /** Speak the reply. */
  enabled?: boolean;
  /** Use of the voice sample in the prompt. */
  mode?: TTSMode;
  /** Voice sample as a file of the server; library use only. */
  ref_audio_path?: string | null;
  /** Voice sample, Base64 of float32 at 16 kHz, at most 30 s. */
  ref_audio_data?: string | null;
  /** Use at most this much of the voice sample, ms. */
  ref_audio_max_ms?: number | null;
  /** Where to write the spoken reply; library use only. */
  output_path?: string | null;
  /** Language of the prompt around the voice sample. */
  language?: string;
  /** Sampling of speech tokens. */
  sampling?: TTSSamplingParams;
};

/** Use of the voice sample in the system prompt. */
export type TTSMode = "default" | "audio_assistant" | "omni" | "audio_roleplay" | "voice_cloning";

/** Sampling of speech tokens. */
export type TTSSamplingParams = {
  /** Nucleus: probability mass kept. */
  top_p?: number;
  /** Candidates kept; 0 keeps all. */
  top_k?: number;
  /** Above 1 discourages speech tokens drawn before. */
  repetition_penalty?: number;
  /** Higher is more varied. */
  temperature?: number;
};

/** A text. */
export type TextContent = {
  /** Content type. */
  type: "text";
  /** The text; may be empty. */
  text: string;
};

/** Token counts of one turn. */
export type TokenStats = {
  /** Tokens already in the KV cache. */
  cached_tokens: number;
  /** Tokens fed for this turn. */
  input_tokens: number;
  /** Tokens of the reply. */
  generated_tokens: number;
  /** Tokens in the KV cache afterwards. */
  total_tokens: number;
};

/** Generation of a reply's text. */
export type TurnGenerationConfig = {
  /** Most tokens of the reply. */
  max_new_tokens?: number;
  /** Above 1 makes replies longer, below 1 shorter. */
  length_penalty?: number;
  /** Higher is more varied; 0 takes the likeliest token. */
  temperature?: number;
};

/** Whether replies are spoken. */
export type TurnSpeechConfig = {
  /** Speak the reply; false: text only. */
  enabled?: boolean;
};

/** Voice activity detection. */
export type VadConfig = {
  /** Probability at which speech begins; lower is more sensitive. */
  threshold?: number;
  /** Shorter bursts are ignored, ms. */
  min_speech_duration_ms?: number;
  /** Silence that ends the user's turn, ms. */
  min_silence_duration_ms?: number;
  /** Padding before and after the speech, ms. */
  speech_pad_ms?: number;
};

/** A video with its audio. */
export type VideoContent = {
  /** Content type. */
  type: "video";
  /** Base64 of a container file such as MP4 or WebM. */
  data: string;
  /** Pictures taken from each second of video. */
  stack_frames?: number;
};

/** Start of a turn: the whole history, the new user message last. */
export type Prefill = {
  /** Message type. */
  type: "prefill";
  /** Full history, the new user message last. */
  messages: Array<Message>;
  /** The session; the path's one counts. */
  session_id?: string | null;
  /** From an earlier socket of this session, whose recording continues. */
  session_secret?: string | null;
  /** Voice to speak with, Base64 of float32 at 16 kHz, at most 30 s. */
  tts_ref_audio_base64?: string | null;
  /** The same, used when tts_ref_audio_base64 is absent. */
  ref_audio_base64?: string | null;
  /** Most tiles per picture. */
  max_slice_nums?: number | null;
  /** Interleave pictures and audio second by second. */
  omni_mode?: boolean | null;
  /** Prompt for a spoken reply. */
  use_tts_template?: boolean | null;
  /** Let the model think before it answers. */
  enable_thinking?: boolean;
  /** A reply is generated next. */
  is_last_chunk?: boolean;
  /** Defaults for the `generate` that follows. */
  generation?: GenerationConfig | null;
  /** Defaults for the `generate` that follows. */
  streaming?: StreamingConfig | null;
  /** Older place of max_slice_nums. */
  image?: ImageConfig | null;
  /** Older place of voice and speech settings. */
  tts?: TTSConfig | null;
  /** Send user_transcript of the new message's audio before done. */
  transcribe?: boolean;
};

/** Generate the reply to what was prefilled. */
export type Generate = {
  /** Message type. */
  type: "generate";
  /** Draw at random; false takes the likeliest token. */
  do_sample?: boolean;
  /** Higher is more varied; 0 takes the likeliest token. */
  temperature?: number;
  /** Nucleus: probability mass kept. */
  top_p?: number;
  /** Candidates kept; 0 keeps all. */
  top_k?: number;
  /** Above 1 makes replies longer, below 1 shorter. */
  length_penalty?: number;
  /** The session; the path's one counts. */
  session_id?: string | null;
  /** Speak the reply. */
  generate_audio?: boolean;
  /** Most tokens of the reply. */
  max_new_tokens?: number;
};

/** End the wait, the reply or the session, depending on the protocol. */
export type Stop = {
  /** Message type. */
  type: "stop";
};

/** End of the connection. */
export type Close = {
  /** Message type. */
  type: "close";
};

/** Keep-alive; accepted, never answered. */
export type Heartbeat = {
  /** Message type. */
  type: "heartbeat";
};

/** The request waits; sent once and only if no worker is free. */
export type Queued = {
  /** Message type. */
  type: "queued";
  /** The ticket. */
  ticket_id: string;
  /** 1 is next. */
  position: number;
  /** Estimated wait, s. */
  estimated_wait_s: number;
  /** Waiting requests. */
  queue_length: number;
  /** Keeps the place for a minute: `?ticket=` of another socket; empty on `/ws/chat`. */
  return_ticket: string;
  /** Proves over HTTP that a request is from the session's owner. */
  session_secret: string | null;
  /** Same as estimated_wait_s. */
  eta_seconds: number;
};

/** The place in the queue or the estimate changed. */
export type QueueUpdate = {
  /** Message type. */
  type: "queue_update";
  /** The ticket. */
  ticket_id: string;
  /** 1 is next. */
  position: number;
  /** Estimated wait, s. */
  estimated_wait_s: number;
  /** Waiting requests. */
  queue_length: number;
  /** Keeps the place for a minute: `?ticket=` of another socket; empty on `/ws/chat`. */
  return_ticket: string;
  /** Same as estimated_wait_s. */
  eta_seconds: number;
};

/** A worker is assigned; the client may prepare now. Sent again if that worker cannot be reached and another one takes over. */
export type QueueDone = {
  /** Message type. */
  type: "queue_done";
  /** Name of the worker. */
  worker_id: string | null;
  /** Always 0. */
  position: number;
  /** Proves over HTTP that a request is from the session's owner. */
  session_secret: string | null;
};

/** The history is in the KV cache. */
export type PrefillDone = {
  /** Message type. */
  type: "prefill_done";
  /** Tokens reused; above 0 on a cache hit. */
  cached_tokens: number;
  /** Tokens prefilled now. */
  input_tokens: number;
  /** Messages prefilled now. */
  message_count: number;
  /** Characters of the prompt prefilled now. */
  prompt_length: number;
  /** Earlier turns were reused. */
  cache_hit: boolean;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** A chunk of the reply. */
export type Chunk = {
  /** Message type. */
  type: "chunk";
  /** Number of the chunk, from 0. */
  chunk_index: number;
  /** New text. */
  text_delta: string | null;
  /** New audio: Base64 of float32, mono, at audio_sample_rate. */
  audio_data: string | null;
  /** Samples per second of audio_data. */
  audio_sample_rate: number;
  /** The last chunk, without text and audio. */
  is_final: boolean;
  /** Time to generate this chunk, ms. */
  duration_ms: number;
};

/** Transcript of the user's speech, some time after it. */
export type UserTranscript = {
  /** Message type. */
  type: "user_transcript";
  /** The transcript; empty if transcription failed. */
  text: string;
  /** ISO 639-1 code, if known. */
  language: string;
  /** Position of the speech in the audio sent, ms. */
  start_ms: number;
  /** Length of the speech, ms. */
  duration_ms: number;
  /** Half duplex: number of the turn that replies to it. */
  turn_index: number | null;
  /** Why there is no text. */
  error: string | null;
};

/** The turn is over. */
export type Done = {
  /** Message type. */
  type: "done";
  /** The session. */
  session_id: string;
  /** The whole reply. */
  text: string;
  /** Time from prefill to here, ms. */
  elapsed_ms: number;
  /** The reply was cut short on request. */
  stopped: boolean;
  /** Token counts of the turn. */
  token_stats: TokenStats;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** Something was ignored or dropped; the connection stays open. */
export type WarningMessage = {
  /** Message type. */
  type: "warning";
  /** What happened, for a program. */
  code: ErrorCode;
  /** What happened, for a person to read. */
  message: string;
};

/** Fatal error; the connection closes after it. */
export type ErrorMessage = {
  /** Message type. */
  type: "error";
  /** What went wrong, for a person to read. */
  message: string;
  /** What went wrong, for a program. */
  code: ErrorCode;
  /** Always true: the connection closes. */
  fatal: boolean;
  /** Same as message. */
  error: string;
};

/** Set up the session; the first message after queue_done. */
export type HalfDuplexPrepare = {
  /** Message type. */
  type: "prepare";
  /** The system prompt; ignored with system_content. */
  system_prompt?: string | null;
  /** The same as items (text, audio, image); ideally text, voice sample, text. */
  system_content?: Array<TextContent | ImageContent | AudioContent | VideoContent> | null;
  /** Voice sample, Base64 of float32 at 16 kHz, at most 30 s. */
  ref_audio_base64?: string | null;
  /** Voice to speak with, if not that of the system content. */
  tts_ref_audio_base64?: string | null;
  /** Voice sample by its registered name. */
  ref_audio_id?: string | null;
  /** Send user_transcript, if the server can transcribe. */
  transcribe?: boolean;
  /** Settings of this session. */
  config?: HalfDuplexConfig;
};

/** Microphone audio, about half a second. */
export type HalfDuplexAudioChunk = {
  /** Message type. */
  type: "audio_chunk";
  /** Base64 of little-endian float32 samples, mono, 16 kHz, at most 2 s. */
  audio_base64: string;
};

/** Stop speaking and listen; the session continues. */
export type Interrupt = {
  /** Message type. */
  type: "interrupt";
};

/** The session may continue over another socket; the first message if requested. */
export type SessionResumable = {
  /** Message type. */
  type: "session_resumable";
  /** The session's id. */
  session_id: string;
  /** Proves that a socket is the session owner's. */
  resume_token: string;
  /** How long the session waits for another socket, s. */
  grace_s: number;
  /** OpenAI's protocols, which have no `queued`: sent with each new place. */
  return_ticket: string;
};

/** The session continues over this socket; missed messages follow. */
export type SessionResumed = {
  /** Message type. */
  type: "session_resumed";
  /** `seq` of the newest message of the session. */
  last_seq: number;
  /** Missed messages that are lost. */
  lost_messages: number;
  /** How long the session had no socket, ms. */
  away_ms: number;
};

/** The session is ready: send audio now. */
export type HalfDuplexPrepared = {
  /** Message type. */
  type: "prepared";
  /** The session. */
  session_id: string;
  /** Ends after this long without an audio_chunk, s. */
  timeout_s: number;
  /** Name of the recording. */
  recording_session_id: string | null;
  /** The session's secret, as in `queue_done`. */
  session_secret: string | null;
};

/** The user began or stopped speaking; false also if a short burst was discarded. */
export type VadState = {
  /** Message type. */
  type: "vad_state";
  /** The user is speaking. */
  speaking: boolean;
};

/** The user's turn is over and the reply is being generated: stop sending audio. */
export type Generating = {
  /** Message type. */
  type: "generating";
  /** Length of the user's speech, ms. */
  speech_duration_ms: number;
};

/** The reply is complete. */
export type TurnDone = {
  /** Message type. */
  type: "turn_done";
  /** Number of the turn, from 0. */
  turn_index: number;
  /** The whole reply. */
  text: string;
  /** The reply was cut short on request. */
  interrupted: boolean;
  /** Time the turn took, ms. */
  elapsed_ms: number;
  /** Tokens in the KV cache. */
  kv_cache_length: number;
  /** Token counts of the turn. */
  token_stats: TokenStats;
};

/** No audio arrived for too long, or the session reached its longest duration. */
export type HalfDuplexTimeout = {
  /** Message type. */
  type: "timeout";
  /** Duration, s, to one decimal. */
  elapsed_s: number;
  /** The limit reached. */
  reason: "inactivity" | "max_session";
};

/** Reply to stop. */
export type HalfDuplexStopped = {
  /** Message type. */
  type: "stopped";
  /** The session. */
  session_id: string;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** Set up the session; once, after queue_done. */
export type DuplexPrepare = {
  /** Message type. */
  type: "prepare";
  /** The system prompt; precedes the voice sample. */
  prefix_system_prompt?: string;
  /** Follows the voice sample. */
  suffix_system_prompt?: string | null;
  /** Settings of this session. */
  config?: DuplexConfig;
  /** Voice sample by path, inside the server's reference folders only. */
  ref_audio_path?: string | null;
  /** Voice sample in the prompt, Base64 of float32 at 16 kHz, ≤ 30 s. */
  ref_audio_base64?: string | null;
  /** Voice sample to speak with; by default the former. */
  tts_ref_audio_base64?: string | null;
  /** The former by its registered name. */
  ref_audio_id?: string | null;
  /** The latter by its registered name. */
  tts_ref_audio_id?: string | null;
  /** Most tiles per picture; overrides config. */
  max_slice_nums?: number | null;
  /** Send each result before the unit is finalized. */
  deferred_finalize?: boolean;
  /** Send the beginning of a unit's audio ahead of its result, in result_part. */
  early_audio?: boolean;
  /** Send user_transcript, if the server can transcribe. */
  transcribe?: boolean;
  /** If set, the user's speech interrupts the model. */
  barge_in?: BargeInConfig | null;
};

/** One unit of microphone audio, optionally with pictures. */
export type DuplexAudioChunk = {
  /** Message type. */
  type: "audio_chunk";
  /** Base64 of little-endian float32 samples, mono, 16 kHz, chunk_ms long. */
  audio: string;
  /** Base64 JPEG, PNG or WebP pictures of this unit. */
  frame_base64_list?: Array<string> | null;
  /** The model must listen in this unit. */
  force_listen?: boolean;
  /** The model must speak in this unit, unless it must listen. */
  force_speak?: boolean;
  /** Most tiles per picture in this unit. */
  max_slice_nums?: number | null;
  /** Time it was sent, for the client's use. */
  client_ts?: number | null;
  /** Number of the chunk, for the client's use. */
  seq?: number | null;
};

/** One camera picture. */
export type VideoFrame = {
  /** Message type. */
  type: "video_frame";
  /** Base64 of a JPEG, PNG or WebP picture, at most 4 MiB and 4096 px a side. */
  frame: string;
};

/** Text typed by the user; the model gets it at its next pause. */
export type TextInput = {
  /** Message type. */
  type: "text_input";
  /** The text, at most 1,000 characters. */
  text: string;
  /** The model must speak in the first unit after it. */
  force_speak?: boolean;
};

/** Suspend the session. */
export type Pause = {
  /** Message type. */
  type: "pause";
  /** Release after this long, s; at most the server's own limit. */
  timeout?: number | null;
};

/** Continue after a pause. */
export type Resume = {
  /** Message type. */
  type: "resume";
};

/** Measurements of the client; fields outside `metrics` are kept too. */
export type ClientDiagnostic = {
  /** Message type. */
  type: "client_diagnostic";
  /** Measurements by name. */
  metrics?: Record<string, unknown>;
};

/** The session is ready: start capturing. */
export type DuplexPrepared = {
  /** Message type. */
  type: "prepared";
  /** Characters of the system prompt. */
  prompt_length: number;
  /** Tokens of the system prompt. */
  prompt_tokens: number;
  /** Name of the recording. */
  recording_session_id: string | null;
  /** The session. */
  session_id: string;
  /** The session's secret, as in `queue_done`. */
  session_secret: string | null;
  /** Length of one unit, ms. */
  chunk_ms: number;
  /** Most tokens the conversation may hold. */
  max_kv_tokens: number;
  /** Longest pause, s. */
  pause_timeout: number;
};

/** Beginning of a unit's audio, sent ahead; the rest is in the unit's result. */
export type ResultPart = {
  /** Message type. */
  type: "result_part";
  /** Base64 of float32, mono, 24 kHz; play at once. */
  audio_data: string;
  /** Number of the speaking turn. */
  turn_id: number;
  /** Number of the unit, from 0. */
  step: number;
  /** Time from the chunk's arrival to this message, ms. */
  elapsed_ms: number;
};

/** Outcome of one unit; one per audio_chunk, in order. */
export type Result = {
  /** Message type. */
  type: "result";
  /** The model stayed silent. */
  is_listen: boolean;
  /** New text; empty when listening. */
  text: string;
  /** New audio: Base64 of float32, mono, 24 kHz; empty when listening. */
  audio_data: string;
  /** The model has finished its turn. */
  end_of_turn: boolean;
  /** Audio received so far, ms. */
  current_time: number;
  /** Time of the language model: reading the unit, deciding, words, ms. */
  cost_llm_ms: number;
  /** Part of it: reading the unit, where it is measured apart, ms. */
  cost_read_ms: number;
  /** Time to prepare the speech decoder, ms. */
  cost_tts_prep_ms: number | null;
  /** Time of the speech decoder, ms. */
  cost_tts_ms: number;
  /** Time of the vocoder, ms. */
  cost_token2wav_ms: number | null;
  /** Time of the whole unit, ms; stays under chunk_ms in real time. Prefill, generate and the finalize that came before this result. */
  cost_all_ms: number;
  /** Tokens of the language model: decision, words, end. */
  n_tokens: number;
  /** Speech tokens drawn. */
  n_tts_tokens: number;
  /** Time to encode the unit's audio and pictures, ms. */
  prefill_ms: number;
  /** Tokens in the KV cache. */
  kv_cache_length: number;
  /** Tiles of the unit's pictures. */
  vision_slices: number;
  /** Tokens of those tiles. */
  vision_tokens: number;
  /** When it was sent, Unix seconds. */
  server_send_ts: number | null;
  /** Time from the chunk's arrival to this result, ms. */
  wall_clock_ms: number;
  /** Number of the speaking turn. */
  turn_id: number;
  /** Number of the unit, from 0. */
  step: number;
  /** The model was interrupted: drop audio that was not played yet. */
  barge_in: boolean;
};

/** Reply to pause. */
export type Paused = {
  /** Message type. */
  type: "paused";
  /** The worker is released after this long, s. */
  timeout: number;
};

/** Reply to resume. */
export type Resumed = {
  /** Message type. */
  type: "resumed";
};

/** Reply to interrupt: the next unit listens. */
export type Interrupted = {
  /** Message type. */
  type: "interrupted";
};

/** Reply to stop. */
export type DuplexStopped = {
  /** Message type. */
  type: "stopped";
  /** The session. */
  session_id: string;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** The pause or the session was too long; the connection closes. */
export type DuplexTimeout = {
  /** Message type. */
  type: "timeout";
  /** The limit reached; inactivity is missing audio without a pause. */
  reason: "pause" | "max_session" | "inactivity";
  /** Duration, s. */
  elapsed_s: number;
  /** The session. */
  session_id: string;
};

/** Reply to text_input: it was accepted. */
export type TextAdded = {
  /** Message type. */
  type: "text_added";
  /** The text without surrounding space. */
  text: string;
  /** Length of the audio sent before it, ms. */
  start_ms: number;
};

/** The request of a `/ws/chat` connection; its type may be omitted. */
export type ChatSocketRequest = {
  /** Message type. */
  type?: "chat";
  /** Full history, the new user message last. */
  messages: Array<Message>;
  /** Generation of the text. */
  generation?: GenerationConfig;
  /** Whether the reply is spoken. */
  tts?: TTSConfig;
  /** How pictures are split. */
  image?: ImageConfig;
  /** Prompt for a spoken reply. */
  use_tts_template?: boolean;
  /** Interleave pictures and audio second by second. */
  omni_mode?: boolean;
  /** Let the model think before it answers. */
  enable_thinking?: boolean;
  /** Text the reply begins with, as if generated; its tokens count, so a reply of at most 1 new token is exactly this text. */
  reply_start?: string;
  /** Makes the sampling of this reply repeatable. */
  seed?: number | null;
  /** Stream the reply. */
  streaming?: boolean;
};

/** The request is in the KV cache. */
export type ChatPrefillDone = {
  /** Message type. */
  type: "prefill_done";
  /** Tokens prefilled. */
  input_tokens: number;
};

/** A chunk of the reply. */
export type ChatChunk = {
  /** Message type. */
  type: "chunk";
  /** New text. */
  text_delta: string | null;
  /** New audio: Base64 of float32, 24 kHz. */
  audio_data: string | null;
};

/** The reply is complete. */
export type ChatDone = {
  /** Message type. */
  type: "done";
  /** The whole reply. */
  text: string;
  /** Tokens of the reply. */
  generated_tokens: number;
  /** Tokens prefilled. */
  input_tokens: number;
  /** The reply was cut short on request. */
  stopped: boolean;
  /** All audio if not streamed: Base64 of float32, 24 kHz. */
  audio_data: string | null;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** What the client sends on /ws/streaming/{session_id}. */
export type StreamingClientMessage = Prefill | Generate | Stop | Close | Heartbeat;
/** What the server sends on /ws/streaming/{session_id}. */
export type StreamingServerMessage = Queued | QueueUpdate | QueueDone | PrefillDone | Chunk | UserTranscript | Done | WarningMessage | ErrorMessage;
/** What the client sends on /ws/half_duplex/{session_id}. */
export type HalfDuplexClientMessage = HalfDuplexPrepare | HalfDuplexAudioChunk | Stop | Interrupt | Heartbeat;
/** What the server sends on /ws/half_duplex/{session_id}. */
export type HalfDuplexServerMessage = Queued | QueueUpdate | QueueDone | SessionResumable | SessionResumed | HalfDuplexPrepared | VadState | Generating | Chunk | TurnDone | HalfDuplexTimeout | HalfDuplexStopped | UserTranscript | WarningMessage | ErrorMessage;
/** What the client sends on /ws/duplex/{session_id}. */
export type DuplexClientMessage = DuplexPrepare | DuplexAudioChunk | VideoFrame | TextInput | Pause | Resume | Interrupt | Stop | ClientDiagnostic | Heartbeat;
/** What the server sends on /ws/duplex/{session_id}. */
export type DuplexServerMessage = Queued | QueueUpdate | QueueDone | SessionResumable | SessionResumed | DuplexPrepared | ResultPart | Result | Paused | Resumed | Interrupted | DuplexStopped | DuplexTimeout | TextAdded | UserTranscript | WarningMessage | ErrorMessage;
/** What the client sends on /ws/chat. */
export type ChatClientMessage = ChatSocketRequest | Stop | Heartbeat;
/** What the server sends on /ws/chat. */
export type ChatServerMessage = Queued | QueueUpdate | QueueDone | ChatPrefillDone | ChatChunk | ChatDone | WarningMessage | ErrorMessage;
