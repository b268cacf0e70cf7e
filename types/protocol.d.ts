// Messages and settings of the protocol, from the server's own models. Written by `make protocol`.

/** A piece of sound. */
export type AudioContent = {
  /** Kind of content item. */
  type: "audio";
  /** Base64 of little-endian float32 samples, mono, 16 kHz, at most 10 min. */
  data: string;
  /** Samples per second; must be 16000. */
  sample_rate?: number;
};

/** The server listens for the user while the model speaks, and breaks the model off. */
export type BargeInConfig = {
  /** Speech begins at this probability; lower is keener. */
  threshold?: number;
  /** Shorter bursts break nothing off, ms. */
  min_speech_duration_ms?: number;
};

/** All settings of one duplex session; what is left out takes the default given here. */
export type DuplexConfig = {
  /** Speak; false gives text alone. */
  generate_audio?: boolean;
  /** How the model says that it listens or speaks; must be explicit. */
  ls_mode?: "explicit";
  /** Units at the start in which the model must listen. */
  force_listen_count?: number;
  /** Most steps of one unit: the decision to listen or to speak, tokens of text, and the end of the unit. At most N - 2 tokens are spoken, at least one is allowed. */
  max_new_speak_tokens_per_chunk?: number;
  /** Higher is more varied; 0 takes the likeliest token. */
  temperature?: number;
  /** Candidates kept; 0 keeps all. */
  top_k?: number;
  /** Nucleus: probability mass kept. */
  top_p?: number;
  /** Above 1 the model is quieter, below 1 more eager. */
  listen_prob_scale?: number;
  /** Length of one unit and of each audio_chunk, ms; must be 1000. */
  chunk_ms?: number;
  /** Samples per second of the audio sent; must be 16000. */
  sample_rate?: number;
  /** Draw at random, or take the likeliest token. */
  decode_mode?: "sampling" | "greedy";
  /** Listen if listening is among this many likeliest. */
  listen_top_k?: number | null;
  /** Above 1 discourages tokens spoken before. */
  text_repetition_penalty?: number;
  /** How far back the repetition penalty looks, tokens. */
  text_repetition_window_size?: number;
  /** Above 1 makes answers longer and harder to interrupt. */
  length_penalty?: number;
  /** How varied the voice is; 0 takes the likeliest token. */
  tts_temperature?: number;
  /** Most tiles per picture. */
  max_slice_nums?: number;
};

/** The `code` of an `error` or `warning` message. */
export type ErrorCode = "queue_full" | "queue_cancelled" | "no_worker" | "shutting_down" | "worker_unreachable" | "worker_lost" | "not_prepared" | "already_prepared" | "out_of_order" | "bad_json" | "bad_audio" | "bad_frame" | "bad_config" | "too_big" | "unknown_type" | "session_in_use" | "session_expired" | "invalid_session_id" | "timeout" | "late_chunk" | "context_nearly_full" | "context_full" | "generation_failed" | "not_available" | "one_voice" | "voice_cut" | "recording_stopped" | "ended_by_admin" | "app_disabled" | "origin_refused" | "unauthorized" | "forbidden" | "rate_limited" | "not_found" | "still_writing" | "internal";

/** How the text of a reply is drawn. */
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
  /** When the user counts as speaking. */
  vad?: VadConfig;
  /** How the text is drawn. */
  generation?: TurnGenerationConfig;
  /** Whether replies are spoken. */
  tts?: TurnSpeechConfig;
  /** When the session ends by itself. */
  session?: SessionConfig;
};

/** How pictures are cut before the model sees them. */
export type ImageConfig = {
  /** Most tiles per picture, 1 to 16; null leaves it to the model. */
  max_slice_nums?: number | null;
  /** Number the pictures in the prompt. */
  use_image_id?: boolean;
};

/** A picture. */
export type ImageContent = {
  /** Kind of content item. */
  type: "image";
  /** Base64 of an encoded picture (JPEG, PNG, WebP, GIF, BMP or TIFF). */
  data: string;
};

/** What one party said. */
export type Message = {
  /** Who says it. */
  role: Role;
  /** A text, or a list of text, image, audio and video items in order. */
  content: string | Array<TextContent | ImageContent | AudioContent | VideoContent>;
};

/** Who says a message. */
export type Role = "system" | "user" | "assistant";

/** When the session ends by itself. */
export type SessionConfig = {
  /** Ends after this long without an audio_chunk, s. */
  timeout_s?: number;
};

/** How a streamed reply is spoken. */
export type StreamingConfig = {
  /** Speak the reply. */
  generate_audio?: boolean;
  /** Voice sample as a file of the server; library use only. */
  ref_audio_path?: string | null;
  /** Voice sample, Base64 of float32 at 16 kHz, at most 30 s. */
  ref_audio_data?: string | null;
  /** How speech tokens are drawn. */
  tts_sampling?: TTSSamplingParams;
};

/** Whether and with which voice a reply is spoken. */
export type TTSConfig = {
  /** Speak the reply. */
  enabled?: boolean;
  /** What the model is asked to do with the voice sample. */
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
  /** How speech tokens are drawn. */
  sampling?: TTSSamplingParams;
};

/** What the system prompt asks the model to do with the voice sample. */
export type TTSMode = "default" | "audio_assistant" | "omni" | "audio_roleplay" | "voice_cloning";

/** How speech tokens are drawn. */
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

/** A piece of text. */
export type TextContent = {
  /** Kind of content item. */
  type: "text";
  /** The text; may be empty. */
  text: string;
};

/** What one turn cost, in tokens. */
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

/** How the text of a reply is drawn. */
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
  /** Speak the reply; false gives text alone. */
  enabled?: boolean;
};

/** When the user counts as speaking. */
export type VadConfig = {
  /** Speech begins at this probability; lower is keener. */
  threshold?: number;
  /** Shorter bursts are discarded as noise, ms. */
  min_speech_duration_ms?: number;
  /** Silence that ends the user's turn, ms. */
  min_silence_duration_ms?: number;
  /** Kept before and after the speech, ms. */
  speech_pad_ms?: number;
};

/** A video with its sound. */
export type VideoContent = {
  /** Kind of content item. */
  type: "video";
  /** Base64 of a container file such as MP4 or WebM. */
  data: string;
  /** Pictures taken from each second of video. */
  stack_frames?: number;
};

/** Start of a turn: the whole history, the new user message last. */
export type Prefill = {
  /** Kind of message. */
  type: "prefill";
  /** Full history, the new user message last. */
  messages: Array<Message>;
  /** The session; the path's one counts. */
  session_id?: string | null;
  /** Of an earlier socket of this session, whose recording continues. */
  session_secret?: string | null;
  /** Voice to speak with, Base64 of float32 at 16 kHz, at most 30 s. */
  tts_ref_audio_base64?: string | null;
  /** The same, used when tts_ref_audio_base64 is absent. */
  ref_audio_base64?: string | null;
  /** Most tiles per picture. */
  max_slice_nums?: number | null;
  /** Interleave pictures and sound second by second. */
  omni_mode?: boolean | null;
  /** Prompt for a spoken reply. */
  use_tts_template?: boolean | null;
  /** Let the model think before it answers. */
  enable_thinking?: boolean;
  /** A reply is generated after this. */
  is_last_chunk?: boolean;
  /** Defaults for the `generate` that follows. */
  generation?: GenerationConfig | null;
  /** Defaults for the `generate` that follows. */
  streaming?: StreamingConfig | null;
  /** max_slice_nums in its older place. */
  image?: ImageConfig | null;
  /** Voice and speech in their older place. */
  tts?: TTSConfig | null;
  /** Say in user_transcript what is heard in the new message's sound, before done. */
  transcribe?: boolean;
};

/** Generate the reply to what was prefilled. */
export type Generate = {
  /** Kind of message. */
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

/** End what is going on: the wait, the reply or the session, as each protocol says. */
export type Stop = {
  /** Kind of message. */
  type: "stop";
};

/** End of the connection. */
export type Close = {
  /** Kind of message. */
  type: "close";
};

/** A sign of life; tolerated, never answered. */
export type Heartbeat = {
  /** Kind of message. */
  type: "heartbeat";
};

/** The request waits; sent once and only if no worker is free. */
export type Queued = {
  /** Kind of message. */
  type: "queued";
  /** Name of the place. */
  ticket_id: string;
  /** 1 is next. */
  position: number;
  /** Estimated wait, s. */
  estimated_wait_s: number;
  /** How many requests wait. */
  queue_length: number;
  /** Keeps the place for a minute: `?ticket=` of another socket. */
  return_ticket: string;
  /** Shows over HTTP that a request is from the session's owner. */
  session_secret: string | null;
  /** Same as estimated_wait_s. */
  eta_seconds: number;
};

/** The place in the queue or the estimate changed. */
export type QueueUpdate = {
  /** Kind of message. */
  type: "queue_update";
  /** Name of the place. */
  ticket_id: string;
  /** 1 is next. */
  position: number;
  /** Estimated wait, s. */
  estimated_wait_s: number;
  /** How many requests wait. */
  queue_length: number;
  /** Keeps the place for a minute: `?ticket=` of another socket. */
  return_ticket: string;
  /** Same as estimated_wait_s. */
  eta_seconds: number;
};

/** A worker is assigned; the client may prepare now. It comes again if that worker could not be reached and another one takes over. */
export type QueueDone = {
  /** Kind of message. */
  type: "queue_done";
  /** Name of the worker. */
  worker_id: string | null;
  /** Always 0. */
  position: number;
  /** Shows over HTTP that a request is from the session's owner. */
  session_secret: string | null;
};

/** The history is in the KV cache. */
export type PrefillDone = {
  /** Kind of message. */
  type: "prefill_done";
  /** Tokens reused; above 0 on a cache hit. */
  cached_tokens: number;
  /** Tokens fed now. */
  input_tokens: number;
  /** Messages fed now. */
  message_count: number;
  /** Characters of the prompt fed now. */
  prompt_length: number;
  /** Earlier turns were not fed again. */
  cache_hit: boolean;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** A piece of the reply. */
export type Chunk = {
  /** Kind of message. */
  type: "chunk";
  /** Number of the piece, from 0. */
  chunk_index: number;
  /** New text. */
  text_delta: string | null;
  /** New sound: Base64 of float32, mono, at audio_sample_rate. */
  audio_data: string | null;
  /** Samples per second of audio_data. */
  audio_sample_rate: number;
  /** The last piece; it carries neither text nor sound. */
  is_final: boolean;
  /** Time it took to make this piece, ms. */
  duration_ms: number;
};

/** What the user said, as text; some time after it was said. */
export type UserTranscript = {
  /** Kind of message. */
  type: "user_transcript";
  /** What was said; empty if it could not be written down. */
  text: string;
  /** ISO 639-1 code, if it is known. */
  language: string;
  /** Where it began in the sound that was sent, ms. */
  start_ms: number;
  /** How long it was, ms. */
  duration_ms: number;
  /** Number of the turn that answers it, in half duplex. */
  turn_index: number | null;
  /** Why there is no text. */
  error: string | null;
};

/** The turn is over. */
export type Done = {
  /** Kind of message. */
  type: "done";
  /** The session. */
  session_id: string;
  /** The whole reply. */
  text: string;
  /** Time from prefill to here, ms. */
  elapsed_ms: number;
  /** The reply was cut short on request. */
  stopped: boolean;
  /** What the turn cost, in tokens. */
  token_stats: TokenStats;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** Something was ignored or left out; the connection stays open. */
export type WarningMessage = {
  /** Kind of message. */
  type: "warning";
  /** What happened, for a program. */
  code: ErrorCode;
  /** What happened, for a person to read. */
  message: string;
};

/** Something cannot be helped; the connection closes after this. */
export type ErrorMessage = {
  /** Kind of message. */
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
  /** Kind of message. */
  type: "prepare";
  /** The system prompt; used without system_content. */
  system_prompt?: string | null;
  /** The same as items (text, audio, image); best as text, voice sample, text. */
  system_content?: Array<TextContent | ImageContent | AudioContent | VideoContent> | null;
  /** Voice sample, Base64 of float32 at 16 kHz, at most 30 s. */
  ref_audio_base64?: string | null;
  /** Voice to speak with, when it is not the voice of the system content. */
  tts_ref_audio_base64?: string | null;
  /** Voice sample by its registered name. */
  ref_audio_id?: string | null;
  /** Say in user_transcript what the user said, if the server can. */
  transcribe?: boolean;
  /** Settings of this session. */
  config?: HalfDuplexConfig;
};

/** What the microphone heard, about half a second. */
export type HalfDuplexAudioChunk = {
  /** Kind of message. */
  type: "audio_chunk";
  /** Base64 of little-endian float32 samples, mono, 16 kHz, at most 2 s. */
  audio_base64: string;
};

/** Stop speaking and listen; the session continues. */
export type Interrupt = {
  /** Kind of message. */
  type: "interrupt";
};

/** The session may continue over another socket; sent first to who asked for it. */
export type SessionResumable = {
  /** Kind of message. */
  type: "session_resumable";
  /** The session's id. */
  session_id: string;
  /** Shows that a socket is the session's owner's. */
  resume_token: string;
  /** How long the session waits for another socket, s. */
  grace_s: number;
  /** OpenAI's protocols, which have no `queued`: comes with each new place. */
  return_ticket: string;
};

/** The session continues over this socket; the messages that were missed follow. */
export type SessionResumed = {
  /** Kind of message. */
  type: "session_resumed";
  /** `seq` of the newest message of the session. */
  last_seq: number;
  /** Messages that are no longer kept. */
  lost_messages: number;
  /** How long the session had no socket, ms. */
  away_ms: number;
};

/** Ready: send sound now. */
export type HalfDuplexPrepared = {
  /** Kind of message. */
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

/** The user began or ceased to speak; false also when a short burst was discarded. */
export type VadState = {
  /** Kind of message. */
  type: "vad_state";
  /** The user is speaking. */
  speaking: boolean;
};

/** The user's turn is over and the reply is being made: stop sending sound. */
export type Generating = {
  /** Kind of message. */
  type: "generating";
  /** Length of what the user said, ms. */
  speech_duration_ms: number;
};

/** The reply is complete. */
export type TurnDone = {
  /** Kind of message. */
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
  /** What the turn cost, in tokens. */
  token_stats: TokenStats;
};

/** Nothing was heard for too long, or the session reached its longest length. */
export type HalfDuplexTimeout = {
  /** Kind of message. */
  type: "timeout";
  /** How long it was, s, to one decimal. */
  elapsed_s: number;
  /** Which limit was reached. */
  reason: "inactivity" | "max_session";
};

/** Answer to stop. */
export type HalfDuplexStopped = {
  /** Kind of message. */
  type: "stopped";
  /** The session. */
  session_id: string;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** Set up the session; once, after queue_done. */
export type DuplexPrepare = {
  /** Kind of message. */
  type: "prepare";
  /** The system prompt; comes before the voice sample. */
  prefix_system_prompt?: string;
  /** Comes after the voice sample. */
  suffix_system_prompt?: string | null;
  /** Settings of this session. */
  config?: DuplexConfig;
  /** Voice sample by path, inside the server's reference folders only. */
  ref_audio_path?: string | null;
  /** Voice sample the model hears, Base64 of float32 at 16 kHz, ≤ 30 s. */
  ref_audio_base64?: string | null;
  /** Voice sample to speak with; without it, the former. */
  tts_ref_audio_base64?: string | null;
  /** The former by its registered name. */
  ref_audio_id?: string | null;
  /** The latter by its registered name. */
  tts_ref_audio_id?: string | null;
  /** Most tiles per picture; overrides config. */
  max_slice_nums?: number | null;
  /** Send each result before the unit's bookkeeping. */
  deferred_finalize?: boolean;
  /** Send the beginning of a unit's sound ahead of its result, in result_part. */
  early_audio?: boolean;
  /** Say in user_transcript what the user said, if the server can. */
  transcribe?: boolean;
  /** When given, the user's voice breaks the model off; else it never does. */
  barge_in?: BargeInConfig | null;
};

/** What the microphone heard, one unit long; pictures may come with it. */
export type DuplexAudioChunk = {
  /** Kind of message. */
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
  /** When it was sent, for the client's use. */
  client_ts?: number | null;
  /** Number of the chunk, for the client's use. */
  seq?: number | null;
};

/** One camera picture. */
export type VideoFrame = {
  /** Kind of message. */
  type: "video_frame";
  /** Base64 of a JPEG, PNG or WebP picture, at most 4 MiB and 4096 px a side. */
  frame: string;
};

/** What the user typed; known from the model's next pause on. */
export type TextInput = {
  /** Kind of message. */
  type: "text_input";
  /** The words, at most 1,000 characters. */
  text: string;
  /** The model must speak in the first unit that knows it. */
  force_speak?: boolean;
};

/** Suspend the session. */
export type Pause = {
  /** Kind of message. */
  type: "pause";
  /** Release after this long, s; at most the server's own limit. */
  timeout?: number | null;
};

/** Continue after a pause. */
export type Resume = {
  /** Kind of message. */
  type: "resume";
};

/** What the client measured; fields outside `metrics` are kept too. */
export type ClientDiagnostic = {
  /** Kind of message. */
  type: "client_diagnostic";
  /** Measurements by name. */
  metrics?: Record<string, unknown>;
};

/** Ready: start to capture now. */
export type DuplexPrepared = {
  /** Kind of message. */
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

/** The beginning of a unit's sound, sent ahead; the rest is in the unit's result. */
export type ResultPart = {
  /** Kind of message. */
  type: "result_part";
  /** Base64 of float32, mono, 24 kHz; to be played at once. */
  audio_data: string;
  /** Number of the speaking turn. */
  turn_id: number;
  /** Number of the unit, from 0. */
  step: number;
  /** Time from the chunk's arrival to this message, ms. */
  elapsed_ms: number;
};

/** What the model did in one unit; one per audio_chunk, in order. */
export type Result = {
  /** Kind of message. */
  type: "result";
  /** The model stayed silent. */
  is_listen: boolean;
  /** New text; empty when listening. */
  text: string;
  /** New sound: Base64 of float32, mono, 24 kHz; empty when listening. */
  audio_data: string;
  /** The model has finished what it had to say. */
  end_of_turn: boolean;
  /** Audio heard so far, ms. */
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
  /** Time to encode the unit's sound and pictures, ms. */
  prefill_ms: number;
  /** Tokens in the KV cache. */
  kv_cache_length: number;
  /** Tiles cut from the unit's pictures. */
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
  /** The model broke off what it was saying: flush what is not yet played. */
  barge_in: boolean;
};

/** Answer to pause. */
export type Paused = {
  /** Kind of message. */
  type: "paused";
  /** The worker is released after this long, s. */
  timeout: number;
};

/** Answer to resume. */
export type Resumed = {
  /** Kind of message. */
  type: "resumed";
};

/** Answer to interrupt: the next unit listens. */
export type Interrupted = {
  /** Kind of message. */
  type: "interrupted";
};

/** Answer to stop. */
export type DuplexStopped = {
  /** Kind of message. */
  type: "stopped";
  /** The session. */
  session_id: string;
  /** Name of the recording. */
  recording_session_id: string | null;
};

/** The pause or the session was too long; the connection closes. */
export type DuplexTimeout = {
  /** Kind of message. */
  type: "timeout";
  /** Which limit was reached; inactivity is silence without a pause. */
  reason: "pause" | "max_session" | "inactivity";
  /** How long it was, s. */
  elapsed_s: number;
  /** The session. */
  session_id: string;
};

/** Answer to text_input: it is taken. */
export type TextAdded = {
  /** Kind of message. */
  type: "text_added";
  /** The words, without the space around them. */
  text: string;
  /** How long the sound was that was sent before, ms. */
  start_ms: number;
};

/** The one request of a `/ws/chat` connection; its type may be left out. */
export type ChatSocketRequest = {
  /** Kind of message. */
  type?: "chat";
  /** Full history, the new user message last. */
  messages: Array<Message>;
  /** How the text is drawn. */
  generation?: GenerationConfig;
  /** Whether the reply is spoken. */
  tts?: TTSConfig;
  /** How pictures are cut. */
  image?: ImageConfig;
  /** Prompt for a spoken reply. */
  use_tts_template?: boolean;
  /** Interleave pictures and sound second by second. */
  omni_mode?: boolean;
  /** Let the model think before it answers. */
  enable_thinking?: boolean;
  /** Text the reply begins with, as if the model had chosen it; its tokens count, so a reply of at most 1 new token is exactly this text. */
  reply_start?: string;
  /** Makes the draws of this reply repeatable. */
  seed?: number | null;
  /** Send the reply in pieces. */
  streaming?: boolean;
};

/** The request is in the KV cache. */
export type ChatPrefillDone = {
  /** Kind of message. */
  type: "prefill_done";
  /** Tokens fed. */
  input_tokens: number;
};

/** A piece of the reply. */
export type ChatChunk = {
  /** Kind of message. */
  type: "chunk";
  /** New text. */
  text_delta: string | null;
  /** New sound: Base64 of float32, 24 kHz. */
  audio_data: string | null;
};

/** The reply is complete. */
export type ChatDone = {
  /** Kind of message. */
  type: "done";
  /** The whole reply. */
  text: string;
  /** Tokens of the reply. */
  generated_tokens: number;
  /** Tokens fed. */
  input_tokens: number;
  /** The reply was cut short on request. */
  stopped: boolean;
  /** All sound when not streaming: Base64 of float32, 24 kHz. */
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
