// @ts-check
/**
 * Messages, settings and limits of the protocol.
 *
 * Generated from the server's own models by `python -m core.schemas.export`; do not edit.
 */

/** A piece of sound.
 * @typedef {Object} AudioContent
 * @property {"audio"} type Kind of content item.
 * @property {string} data Base64 of little-endian float32 samples, mono, 16 kHz, at most 10 min.
 * @property {number} [sample_rate] Samples per second; must be 16000.
 */

/** The server listens for the user while the model speaks, and breaks the model off.
 * @typedef {Object} BargeInConfig
 * @property {number} [threshold] Speech begins at this probability; lower is keener.
 * @property {number} [min_speech_duration_ms] Shorter bursts break nothing off, ms.
 */

/** All settings of one duplex session; what is left out takes the default given here.
 * @typedef {Object} DuplexConfig
 * @property {boolean} [generate_audio] Speak; false gives text alone.
 * @property {"explicit"} [ls_mode] How the model says that it listens or speaks; must be explicit.
 * @property {number} [force_listen_count] Units at the start in which the model must listen.
 * @property {number} [max_new_speak_tokens_per_chunk] Most steps of one unit: the decision to listen or to speak, tokens of text, and the end of the unit. At most N - 2 tokens are spoken, at least one is allowed.
 * @property {number} [temperature] Higher is more varied; 0 takes the likeliest token.
 * @property {number} [top_k] Candidates kept; 0 keeps all.
 * @property {number} [top_p] Nucleus: probability mass kept.
 * @property {number} [listen_prob_scale] Above 1 the model is quieter, below 1 more eager.
 * @property {number} [chunk_ms] Length of one unit and of each audio_chunk, ms; must be 1000.
 * @property {number} [sample_rate] Samples per second of the audio sent; must be 16000.
 * @property {"sampling" | "greedy"} [decode_mode] Draw at random, or take the likeliest token.
 * @property {number | null} [listen_top_k] Listen if listening is among this many likeliest.
 * @property {number} [text_repetition_penalty] Above 1 discourages tokens spoken before.
 * @property {number} [text_repetition_window_size] How far back the repetition penalty looks, tokens.
 * @property {number} [length_penalty] Above 1 makes answers longer and harder to interrupt.
 * @property {number} [tts_temperature] How varied the voice is; 0 takes the likeliest token.
 * @property {number} [max_slice_nums] Most tiles per picture.
 */

/** The `code` of an `error` or `warning` message.
 * @typedef {"queue_full" | "queue_cancelled" | "no_worker" | "shutting_down" | "worker_unreachable" | "worker_lost" | "not_prepared" | "already_prepared" | "out_of_order" | "bad_json" | "bad_audio" | "bad_frame" | "bad_config" | "too_big" | "unknown_type" | "session_in_use" | "session_expired" | "invalid_session_id" | "timeout" | "late_chunk" | "context_nearly_full" | "context_full" | "generation_failed" | "not_available" | "one_voice" | "voice_cut" | "recording_stopped" | "ended_by_admin" | "app_disabled" | "origin_refused" | "unauthorized" | "forbidden" | "rate_limited" | "not_found" | "still_writing" | "internal"} ErrorCode
 */

/** How the text of a reply is drawn.
 * @typedef {Object} GenerationConfig
 * @property {number} [max_new_tokens] Most tokens of the reply.
 * @property {number} [min_new_tokens] Fewest tokens of the reply.
 * @property {boolean} [do_sample] Draw at random; false takes the likeliest token.
 * @property {number} [temperature] Higher is more varied; 0 takes the likeliest token.
 * @property {number} [top_p] Nucleus: probability mass kept.
 * @property {number} [top_k] Candidates kept; 0 keeps all.
 * @property {number} [length_penalty] Above 1 makes replies longer, below 1 shorter.
 * @property {number} [max_inp_length] Most tokens of the prompt; the rest is cut.
 */

/** All settings of one half-duplex session.
 * @typedef {Object} HalfDuplexConfig
 * @property {VadConfig} [vad] When the user counts as speaking.
 * @property {TurnGenerationConfig} [generation] How the text is drawn.
 * @property {TurnSpeechConfig} [tts] Whether replies are spoken.
 * @property {SessionConfig} [session] When the session ends by itself.
 */

/** How pictures are cut before the model sees them.
 * @typedef {Object} ImageConfig
 * @property {number | null} [max_slice_nums] Most tiles per picture, 1 to 16; null leaves it to the model.
 * @property {boolean} [use_image_id] Number the pictures in the prompt.
 */

/** A picture.
 * @typedef {Object} ImageContent
 * @property {"image"} type Kind of content item.
 * @property {string} data Base64 of an encoded picture (JPEG, PNG, WebP, GIF, BMP or TIFF).
 */

/** What one party said.
 * @typedef {Object} Message
 * @property {Role} role Who says it.
 * @property {string | Array<TextContent | ImageContent | AudioContent | VideoContent>} content A text, or a list of text, image, audio and video items in order.
 */

/** Who says a message.
 * @typedef {"system" | "user" | "assistant"} Role
 */

/** When the session ends by itself.
 * @typedef {Object} SessionConfig
 * @property {number} [timeout_s] Ends after this long without an audio_chunk, s.
 */

/** How a streamed reply is spoken.
 * @typedef {Object} StreamingConfig
 * @property {boolean} [generate_audio] Speak the reply.
 * @property {string | null} [ref_audio_path] Voice sample as a file of the server; library use only.
 * @property {string | null} [ref_audio_data] Voice sample, Base64 of float32 at 16 kHz, at most 30 s.
 * @property {TTSSamplingParams} [tts_sampling] How speech tokens are drawn.
 */

/** Whether and with which voice a reply is spoken.
 * @typedef {Object} TTSConfig
 * @property {boolean} [enabled] Speak the reply.
 * @property {TTSMode} [mode] What the model is asked to do with the voice sample.
 * @property {string | null} [ref_audio_path] Voice sample as a file of the server; library use only.
 * @property {string | null} [ref_audio_data] Voice sample, Base64 of float32 at 16 kHz, at most 30 s.
 * @property {number | null} [ref_audio_max_ms] Use at most this much of the voice sample, ms.
 * @property {string | null} [output_path] Where to write the spoken reply; library use only.
 * @property {string} [language] Language of the prompt around the voice sample.
 * @property {TTSSamplingParams} [sampling] How speech tokens are drawn.
 */

/** What the system prompt asks the model to do with the voice sample.
 * @typedef {"default" | "audio_assistant" | "omni" | "audio_roleplay" | "voice_cloning"} TTSMode
 */

/** How speech tokens are drawn.
 * @typedef {Object} TTSSamplingParams
 * @property {number} [top_p] Nucleus: probability mass kept.
 * @property {number} [top_k] Candidates kept; 0 keeps all.
 * @property {number} [repetition_penalty] Above 1 discourages speech tokens drawn before.
 * @property {number} [temperature] Higher is more varied.
 */

/** A piece of text.
 * @typedef {Object} TextContent
 * @property {"text"} type Kind of content item.
 * @property {string} text The text; may be empty.
 */

/** What one turn cost, in tokens.
 * @typedef {Object} TokenStats
 * @property {number} cached_tokens Tokens already in the KV cache.
 * @property {number} input_tokens Tokens fed for this turn.
 * @property {number} generated_tokens Tokens of the reply.
 * @property {number} total_tokens Tokens in the KV cache afterwards.
 */

/** How the text of a reply is drawn.
 * @typedef {Object} TurnGenerationConfig
 * @property {number} [max_new_tokens] Most tokens of the reply.
 * @property {number} [length_penalty] Above 1 makes replies longer, below 1 shorter.
 * @property {number} [temperature] Higher is more varied; 0 takes the likeliest token.
 */

/** Whether replies are spoken.
 * @typedef {Object} TurnSpeechConfig
 * @property {boolean} [enabled] Speak the reply; false gives text alone.
 */

/** When the user counts as speaking.
 * @typedef {Object} VadConfig
 * @property {number} [threshold] Speech begins at this probability; lower is keener.
 * @property {number} [min_speech_duration_ms] Shorter bursts are discarded as noise, ms.
 * @property {number} [min_silence_duration_ms] Silence that ends the user's turn, ms.
 * @property {number} [speech_pad_ms] Kept before and after the speech, ms.
 */

/** A video with its sound.
 * @typedef {Object} VideoContent
 * @property {"video"} type Kind of content item.
 * @property {string} data Base64 of a container file such as MP4 or WebM.
 * @property {number} [stack_frames] Pictures taken from each second of video.
 */

/** Start of a turn: the whole history, the new user message last.
 * @typedef {Object} Prefill
 * @property {"prefill"} type Kind of message.
 * @property {Array<Message>} messages Full history, the new user message last.
 * @property {string | null} [session_id] The session; the path's one counts.
 * @property {string | null} [session_secret] Of an earlier socket of this session, whose recording continues.
 * @property {string | null} [tts_ref_audio_base64] Voice to speak with, Base64 of float32 at 16 kHz, at most 30 s.
 * @property {string | null} [ref_audio_base64] The same, used when tts_ref_audio_base64 is absent.
 * @property {number | null} [max_slice_nums] Most tiles per picture.
 * @property {boolean | null} [omni_mode] Interleave pictures and sound second by second.
 * @property {boolean | null} [use_tts_template] Prompt for a spoken reply.
 * @property {boolean} [enable_thinking] Let the model think before it answers.
 * @property {boolean} [is_last_chunk] A reply is generated after this.
 * @property {GenerationConfig | null} [generation] Defaults for the `generate` that follows.
 * @property {StreamingConfig | null} [streaming] Defaults for the `generate` that follows.
 * @property {ImageConfig | null} [image] max_slice_nums in its older place.
 * @property {TTSConfig | null} [tts] Voice and speech in their older place.
 * @property {boolean} [transcribe] Say in user_transcript what is heard in the new message's sound, before done.
 */

/** Generate the reply to what was prefilled.
 * @typedef {Object} Generate
 * @property {"generate"} type Kind of message.
 * @property {string | null} [session_id] The session; the path's one counts.
 * @property {boolean} [generate_audio] Speak the reply.
 * @property {number} [max_new_tokens] Most tokens of the reply.
 * @property {number} [length_penalty] Above 1 makes replies longer, below 1 shorter.
 * @property {number} [temperature] Higher is more varied; 0 takes the likeliest token.
 * @property {number} [top_p] Nucleus: probability mass kept.
 * @property {number} [top_k] Candidates kept; 0 keeps all.
 * @property {boolean} [do_sample] Draw at random; false takes the likeliest token.
 */

/** End what is going on: the wait, the reply or the session, as each protocol says.
 * @typedef {Object} Stop
 * @property {"stop"} type Kind of message.
 */

/** End of the connection.
 * @typedef {Object} Close
 * @property {"close"} type Kind of message.
 */

/** A sign of life; tolerated, never answered.
 * @typedef {Object} Heartbeat
 * @property {"heartbeat"} type Kind of message.
 */

/** The request waits; sent once and only if no worker is free.
 * @typedef {Object} Queued
 * @property {"queued"} type Kind of message.
 * @property {string} ticket_id Name of the place.
 * @property {number} position 1 is next.
 * @property {number} estimated_wait_s Estimated wait, s.
 * @property {number} queue_length How many requests wait.
 * @property {string} return_ticket Keeps the place for a minute: `?ticket=` of another socket.
 * @property {string | null} session_secret Shows over HTTP that a request is from the session's owner.
 * @property {number} eta_seconds Same as estimated_wait_s.
 */

/** The place in the queue or the estimate changed.
 * @typedef {Object} QueueUpdate
 * @property {"queue_update"} type Kind of message.
 * @property {string} ticket_id Name of the place.
 * @property {number} position 1 is next.
 * @property {number} estimated_wait_s Estimated wait, s.
 * @property {number} queue_length How many requests wait.
 * @property {string} return_ticket Keeps the place for a minute: `?ticket=` of another socket.
 * @property {number} eta_seconds Same as estimated_wait_s.
 */

/** A worker is assigned; the client may prepare now. It comes again if that worker could not be reached and another one takes over.
 * @typedef {Object} QueueDone
 * @property {"queue_done"} type Kind of message.
 * @property {string | null} worker_id Name of the worker.
 * @property {number} position Always 0.
 * @property {string | null} session_secret Shows over HTTP that a request is from the session's owner.
 */

/** The history is in the KV cache.
 * @typedef {Object} PrefillDone
 * @property {"prefill_done"} type Kind of message.
 * @property {number} cached_tokens Tokens reused; above 0 on a cache hit.
 * @property {number} input_tokens Tokens fed now.
 * @property {number} message_count Messages fed now.
 * @property {number} prompt_length Characters of the prompt fed now.
 * @property {boolean} cache_hit Earlier turns were not fed again.
 * @property {string | null} recording_session_id Name of the recording.
 */

/** A piece of the reply.
 * @typedef {Object} Chunk
 * @property {"chunk"} type Kind of message.
 * @property {number} chunk_index Number of the piece, from 0.
 * @property {string | null} text_delta New text.
 * @property {string | null} audio_data New sound: Base64 of float32, mono, at audio_sample_rate.
 * @property {number} audio_sample_rate Samples per second of audio_data.
 * @property {boolean} is_final The last piece; it carries neither text nor sound.
 * @property {number} duration_ms Time it took to make this piece, ms.
 */

/** What the user said, as text; some time after it was said.
 * @typedef {Object} UserTranscript
 * @property {"user_transcript"} type Kind of message.
 * @property {string} text What was said; empty if it could not be written down.
 * @property {string} language ISO 639-1 code, if it is known.
 * @property {number} start_ms Where it began in the sound that was sent, ms.
 * @property {number} duration_ms How long it was, ms.
 * @property {number | null} turn_index Number of the turn that answers it, in half duplex.
 * @property {string | null} error Why there is no text.
 */

/** The turn is over.
 * @typedef {Object} Done
 * @property {"done"} type Kind of message.
 * @property {string} session_id The session.
 * @property {string} text The whole reply.
 * @property {number} elapsed_ms Time from prefill to here, ms.
 * @property {boolean} stopped The reply was cut short on request.
 * @property {TokenStats} token_stats What the turn cost, in tokens.
 * @property {string | null} recording_session_id Name of the recording.
 */

/** Something was ignored or left out; the connection stays open.
 * @typedef {Object} WarningMessage
 * @property {"warning"} type Kind of message.
 * @property {ErrorCode} code What happened, for a program.
 * @property {string} message What happened, for a person to read.
 */

/** Something cannot be helped; the connection closes after this.
 * @typedef {Object} ErrorMessage
 * @property {"error"} type Kind of message.
 * @property {string} message What went wrong, for a person to read.
 * @property {ErrorCode} code What went wrong, for a program.
 * @property {boolean} fatal Always true: the connection closes.
 * @property {string} error Same as message.
 */

/** Set up the session; the first message after queue_done.
 * @typedef {Object} HalfDuplexPrepare
 * @property {"prepare"} type Kind of message.
 * @property {string | null} [system_prompt] The system prompt; used without system_content.
 * @property {Array<TextContent | ImageContent | AudioContent | VideoContent> | null} [system_content] The same as items (text, audio, image); best as text, voice sample, text.
 * @property {string | null} [ref_audio_base64] Voice sample, Base64 of float32 at 16 kHz, at most 30 s.
 * @property {string | null} [tts_ref_audio_base64] Voice to speak with, when it is not the voice of the system content.
 * @property {string | null} [ref_audio_id] Voice sample by its registered name.
 * @property {boolean} [transcribe] Say in user_transcript what the user said, if the server can.
 * @property {HalfDuplexConfig} [config] Settings of this session.
 */

/** What the microphone heard, about half a second.
 * @typedef {Object} HalfDuplexAudioChunk
 * @property {"audio_chunk"} type Kind of message.
 * @property {string} audio_base64 Base64 of little-endian float32 samples, mono, 16 kHz, at most 2 s.
 */

/** Stop speaking and listen; the session continues.
 * @typedef {Object} Interrupt
 * @property {"interrupt"} type Kind of message.
 */

/** The session may continue over another socket; sent first to who asked for it.
 * @typedef {Object} SessionResumable
 * @property {"session_resumable"} type Kind of message.
 * @property {string} session_id The session's id.
 * @property {string} resume_token Shows that a socket is the session's owner's.
 * @property {number} grace_s How long the session waits for another socket, s.
 * @property {string} return_ticket OpenAI's protocols, which have no `queued`: comes with each new place.
 */

/** The session continues over this socket; the messages that were missed follow.
 * @typedef {Object} SessionResumed
 * @property {"session_resumed"} type Kind of message.
 * @property {number} last_seq `seq` of the newest message of the session.
 * @property {number} lost_messages Messages that are no longer kept.
 * @property {number} away_ms How long the session had no socket, ms.
 */

/** Ready: send sound now.
 * @typedef {Object} HalfDuplexPrepared
 * @property {"prepared"} type Kind of message.
 * @property {string} session_id The session.
 * @property {number} timeout_s Ends after this long without an audio_chunk, s.
 * @property {string | null} recording_session_id Name of the recording.
 * @property {string | null} session_secret The session's secret, as in `queue_done`.
 */

/** The user began or ceased to speak; false also when a short burst was discarded.
 * @typedef {Object} VadState
 * @property {"vad_state"} type Kind of message.
 * @property {boolean} speaking The user is speaking.
 */

/** The user's turn is over and the reply is being made: stop sending sound.
 * @typedef {Object} Generating
 * @property {"generating"} type Kind of message.
 * @property {number} speech_duration_ms Length of what the user said, ms.
 */

/** The reply is complete.
 * @typedef {Object} TurnDone
 * @property {"turn_done"} type Kind of message.
 * @property {number} turn_index Number of the turn, from 0.
 * @property {string} text The whole reply.
 * @property {boolean} interrupted The reply was cut short on request.
 * @property {number} elapsed_ms Time the turn took, ms.
 * @property {number} kv_cache_length Tokens in the KV cache.
 * @property {TokenStats} token_stats What the turn cost, in tokens.
 */

/** Nothing was heard for too long, or the session reached its longest length.
 * @typedef {Object} HalfDuplexTimeout
 * @property {"timeout"} type Kind of message.
 * @property {number} elapsed_s How long it was, s, to one decimal.
 * @property {"inactivity" | "max_session"} reason Which limit was reached.
 */

/** Answer to stop.
 * @typedef {Object} HalfDuplexStopped
 * @property {"stopped"} type Kind of message.
 * @property {string} session_id The session.
 * @property {string | null} recording_session_id Name of the recording.
 */

/** Set up the session; once, after queue_done.
 * @typedef {Object} DuplexPrepare
 * @property {"prepare"} type Kind of message.
 * @property {string} [prefix_system_prompt] The system prompt; comes before the voice sample.
 * @property {string | null} [suffix_system_prompt] Comes after the voice sample.
 * @property {DuplexConfig} [config] Settings of this session.
 * @property {string | null} [ref_audio_path] Voice sample by path, inside the server's reference folders only.
 * @property {string | null} [ref_audio_base64] Voice sample the model hears, Base64 of float32 at 16 kHz, ≤ 30 s.
 * @property {string | null} [tts_ref_audio_base64] Voice sample to speak with; without it, the former.
 * @property {string | null} [ref_audio_id] The former by its registered name.
 * @property {string | null} [tts_ref_audio_id] The latter by its registered name.
 * @property {number | null} [max_slice_nums] Most tiles per picture; overrides config.
 * @property {boolean} [deferred_finalize] Send each result before the unit's bookkeeping.
 * @property {boolean} [early_audio] Send the beginning of a unit's sound ahead of its result, in result_part.
 * @property {boolean} [transcribe] Say in user_transcript what the user said, if the server can.
 * @property {BargeInConfig | null} [barge_in] When given, the user's voice breaks the model off; else it never does.
 */

/** What the microphone heard, one unit long; pictures may come with it.
 * @typedef {Object} DuplexAudioChunk
 * @property {"audio_chunk"} type Kind of message.
 * @property {string} audio Base64 of little-endian float32 samples, mono, 16 kHz, chunk_ms long.
 * @property {Array<string> | null} [frame_base64_list] Base64 JPEG, PNG or WebP pictures of this unit.
 * @property {boolean} [force_listen] The model must listen in this unit.
 * @property {boolean} [force_speak] The model must speak in this unit, unless it must listen.
 * @property {number | null} [max_slice_nums] Most tiles per picture in this unit.
 * @property {number | null} [client_ts] When it was sent, for the client's use.
 * @property {number | null} [seq] Number of the chunk, for the client's use.
 */

/** One camera picture.
 * @typedef {Object} VideoFrame
 * @property {"video_frame"} type Kind of message.
 * @property {string} frame Base64 of a JPEG, PNG or WebP picture, at most 4 MiB and 4096 px a side.
 */

/** What the user typed; known from the model's next pause on.
 * @typedef {Object} TextInput
 * @property {"text_input"} type Kind of message.
 * @property {string} text The words, at most 1,000 characters.
 * @property {boolean} [force_speak] The model must speak in the first unit that knows it.
 */

/** Suspend the session.
 * @typedef {Object} Pause
 * @property {"pause"} type Kind of message.
 * @property {number | null} [timeout] Release after this long, s; at most the server's own limit.
 */

/** Continue after a pause.
 * @typedef {Object} Resume
 * @property {"resume"} type Kind of message.
 */

/** What the client measured; fields outside `metrics` are kept too.
 * @typedef {Object} ClientDiagnostic
 * @property {"client_diagnostic"} type Kind of message.
 * @property {Record<string, unknown>} [metrics] Measurements by name.
 */

/** Ready: start to capture now.
 * @typedef {Object} DuplexPrepared
 * @property {"prepared"} type Kind of message.
 * @property {number} prompt_length Characters of the system prompt.
 * @property {number} prompt_tokens Tokens of the system prompt.
 * @property {string | null} recording_session_id Name of the recording.
 * @property {string} session_id The session.
 * @property {string | null} session_secret The session's secret, as in `queue_done`.
 * @property {number} chunk_ms Length of one unit, ms.
 * @property {number} max_kv_tokens Most tokens the conversation may hold.
 * @property {number} pause_timeout Longest pause, s.
 */

/** The beginning of a unit's sound, sent ahead; the rest is in the unit's result.
 * @typedef {Object} ResultPart
 * @property {"result_part"} type Kind of message.
 * @property {string} audio_data Base64 of float32, mono, 24 kHz; to be played at once.
 * @property {number} turn_id Number of the speaking turn.
 * @property {number} step Number of the unit, from 0.
 * @property {number} elapsed_ms Time from the chunk's arrival to this message, ms.
 */

/** What the model did in one unit; one per audio_chunk, in order.
 * @typedef {Object} Result
 * @property {"result"} type Kind of message.
 * @property {boolean} is_listen The model stayed silent.
 * @property {string} text New text; empty when listening.
 * @property {string} audio_data New sound: Base64 of float32, mono, 24 kHz; empty when listening.
 * @property {boolean} end_of_turn The model has finished what it had to say.
 * @property {number} current_time Audio heard so far, ms.
 * @property {number} cost_llm_ms Time of the language model: reading the unit, deciding, words, ms.
 * @property {number} cost_read_ms Part of it: reading the unit, where it is measured apart, ms.
 * @property {number | null} cost_tts_prep_ms Time to prepare the speech decoder, ms.
 * @property {number} cost_tts_ms Time of the speech decoder, ms.
 * @property {number | null} cost_token2wav_ms Time of the vocoder, ms.
 * @property {number} cost_all_ms Time of the whole unit, ms; stays under chunk_ms in real time. Prefill, generate and the finalize that came before this result.
 * @property {number} n_tokens Tokens of the language model: decision, words, end.
 * @property {number} n_tts_tokens Speech tokens drawn.
 * @property {number} prefill_ms Time to encode the unit's sound and pictures, ms.
 * @property {number} kv_cache_length Tokens in the KV cache.
 * @property {number} vision_slices Tiles cut from the unit's pictures.
 * @property {number} vision_tokens Tokens of those tiles.
 * @property {number | null} server_send_ts When it was sent, Unix seconds.
 * @property {number} wall_clock_ms Time from the chunk's arrival to this result, ms.
 * @property {number} turn_id Number of the speaking turn.
 * @property {number} step Number of the unit, from 0.
 * @property {boolean} barge_in The model broke off what it was saying: flush what is not yet played.
 */

/** Answer to pause.
 * @typedef {Object} Paused
 * @property {"paused"} type Kind of message.
 * @property {number} timeout The worker is released after this long, s.
 */

/** Answer to resume.
 * @typedef {Object} Resumed
 * @property {"resumed"} type Kind of message.
 */

/** Answer to interrupt: the next unit listens.
 * @typedef {Object} Interrupted
 * @property {"interrupted"} type Kind of message.
 */

/** Answer to stop.
 * @typedef {Object} DuplexStopped
 * @property {"stopped"} type Kind of message.
 * @property {string} session_id The session.
 * @property {string | null} recording_session_id Name of the recording.
 */

/** The pause or the session was too long; the connection closes.
 * @typedef {Object} DuplexTimeout
 * @property {"timeout"} type Kind of message.
 * @property {"pause" | "max_session" | "inactivity"} reason Which limit was reached; inactivity is silence without a pause.
 * @property {number} elapsed_s How long it was, s.
 * @property {string} session_id The session.
 */

/** Answer to text_input: it is taken.
 * @typedef {Object} TextAdded
 * @property {"text_added"} type Kind of message.
 * @property {string} text The words, without the space around them.
 * @property {number} start_ms How long the sound was that was sent before, ms.
 */

/** The one request of a `/ws/chat` connection; its type may be left out.
 * @typedef {Object} ChatSocketRequest
 * @property {"chat"} [type] Kind of message.
 * @property {Array<Message>} messages Full history, the new user message last.
 * @property {GenerationConfig} [generation] How the text is drawn.
 * @property {TTSConfig} [tts] Whether the reply is spoken.
 * @property {ImageConfig} [image] How pictures are cut.
 * @property {boolean} [use_tts_template] Prompt for a spoken reply.
 * @property {boolean} [omni_mode] Interleave pictures and sound second by second.
 * @property {boolean} [enable_thinking] Let the model think before it answers.
 * @property {string} [reply_start] Text the reply begins with, as if the model had chosen it; its tokens count, so a reply of at most 1 new token is exactly this text.
 * @property {number | null} [seed] Makes the draws of this reply repeatable.
 * @property {boolean} [streaming] Send the reply in pieces.
 */

/** The request is in the KV cache.
 * @typedef {Object} ChatPrefillDone
 * @property {"prefill_done"} type Kind of message.
 * @property {number} input_tokens Tokens fed.
 */

/** A piece of the reply.
 * @typedef {Object} ChatChunk
 * @property {"chunk"} type Kind of message.
 * @property {string | null} text_delta New text.
 * @property {string | null} audio_data New sound: Base64 of float32, 24 kHz.
 */

/** The reply is complete.
 * @typedef {Object} ChatDone
 * @property {"done"} type Kind of message.
 * @property {string} text The whole reply.
 * @property {number} generated_tokens Tokens of the reply.
 * @property {number} input_tokens Tokens fed.
 * @property {boolean} stopped The reply was cut short on request.
 * @property {string | null} audio_data All sound when not streaming: Base64 of float32, 24 kHz.
 * @property {string | null} recording_session_id Name of the recording.
 */

/** What the client says on /ws/streaming/{session_id}.
 * @typedef {Prefill | Generate | Stop | Close | Heartbeat} StreamingClientMessage
 */

/** What the server says on /ws/streaming/{session_id}.
 * @typedef {Queued | QueueUpdate | QueueDone | PrefillDone | Chunk | UserTranscript | Done | WarningMessage | ErrorMessage} StreamingServerMessage
 */

/** What the client says on /ws/half_duplex/{session_id}.
 * @typedef {HalfDuplexPrepare | HalfDuplexAudioChunk | Stop | Interrupt | Heartbeat} HalfDuplexClientMessage
 */

/** What the server says on /ws/half_duplex/{session_id}.
 * @typedef {Queued | QueueUpdate | QueueDone | SessionResumable | SessionResumed | HalfDuplexPrepared | VadState | Generating | Chunk | TurnDone | HalfDuplexTimeout | HalfDuplexStopped | UserTranscript | WarningMessage | ErrorMessage} HalfDuplexServerMessage
 */

/** What the client says on /ws/duplex/{session_id}.
 * @typedef {DuplexPrepare | DuplexAudioChunk | VideoFrame | TextInput | Pause | Resume | Interrupt | Stop | ClientDiagnostic | Heartbeat} DuplexClientMessage
 */

/** What the server says on /ws/duplex/{session_id}.
 * @typedef {Queued | QueueUpdate | QueueDone | SessionResumable | SessionResumed | DuplexPrepared | ResultPart | Result | Paused | Resumed | Interrupted | DuplexStopped | DuplexTimeout | TextAdded | UserTranscript | WarningMessage | ErrorMessage} DuplexServerMessage
 */

/** What the client says on /ws/chat.
 * @typedef {ChatSocketRequest | Stop | Heartbeat} ChatClientMessage
 */

/** What the server says on /ws/chat.
 * @typedef {Queued | QueueUpdate | QueueDone | ChatPrefillDone | ChatChunk | ChatDone | WarningMessage | ErrorMessage} ChatServerMessage
 */

/** What a session's id must match. */
export const SESSION_ID_PATTERN = /^[A-Za-z0-9_-]{1,64}$/;

/** Version of the protocol. */
export const PROTOCOL_VERSION = /** @type {const} */ ("1.0.0");

/** Paths of the sockets; the session's id goes into the braces. */
export const SOCKET_PATHS = /** @type {const} */ ({
  "streaming": "/ws/streaming/{session_id}",
  "half_duplex": "/ws/half_duplex/{session_id}",
  "duplex": "/ws/duplex/{session_id}",
  "chat": "/ws/chat"
});

/** Sizes and counts the server accepts. */
export const LIMITS = /** @type {const} */ ({
  "INPUT_SAMPLE_RATE_HZ": 16000,
  "OUTPUT_SAMPLE_RATE_HZ": 24000,
  "UNIT_MS": 1000,
  "SAMPLE_BYTES": 4,
  "MIB": 1048576,
  "CHAT_SOCKET_LIMIT_BYTES": 67108864,
  "PREPARE_LIMIT_BYTES": 8388608,
  "LIVE_SOCKET_LIMIT_BYTES": 2097152,
  "EVENT_LIMIT_BYTES": 20971520,
  "CHUNK_MAX_S": 2.0,
  "REFERENCE_MAX_S": 30.0,
  "CHAT_AUDIO_MAX_S": 600.0,
  "FRAME_MAX_BYTES": 4194304,
  "FRAME_MAX_SIDE_PX": 4096,
  "PICTURE_MAX_BYTES": 20971520,
  "PICTURE_MAX_SIDE_PX": 16384,
  "PICTURE_MAX_PIXELS": 64000000,
  "PICTURES_MAX": 64,
  "PICTURES_MAX_PIXELS": 192000000,
  "MEDIA_MAX_PIXELS": 128000000,
  "VIDEO_MAX_BYTES": 50331648,
  "TEXT_MAX_CHARS": 200000,
  "MESSAGES_MAX": 1024,
  "ITEMS_MAX": 256,
  "JSON_VALUES_MAX": 100000,
  "FRAMES_PER_MESSAGE_MAX": 64,
  "WORKERS_MAX": 1000,
  "SLOTS_MAX": 128,
  "MAX_SLICES": 16,
  "DURATION_MAX_S": 86400.0,
  "ID_MAX_CHARS": 128,
  "PATH_MAX_CHARS": 4096
});

/** The `code` of an `error` or a `warning`. */
export const ERROR_CODES = /** @type {const} */ ({
  "QUEUE_FULL": "queue_full",
  "QUEUE_CANCELLED": "queue_cancelled",
  "NO_WORKER": "no_worker",
  "SHUTTING_DOWN": "shutting_down",
  "WORKER_UNREACHABLE": "worker_unreachable",
  "WORKER_LOST": "worker_lost",
  "NOT_PREPARED": "not_prepared",
  "ALREADY_PREPARED": "already_prepared",
  "OUT_OF_ORDER": "out_of_order",
  "BAD_JSON": "bad_json",
  "BAD_AUDIO": "bad_audio",
  "BAD_FRAME": "bad_frame",
  "BAD_CONFIG": "bad_config",
  "TOO_BIG": "too_big",
  "UNKNOWN_TYPE": "unknown_type",
  "SESSION_IN_USE": "session_in_use",
  "SESSION_EXPIRED": "session_expired",
  "INVALID_SESSION_ID": "invalid_session_id",
  "TIMEOUT": "timeout",
  "LATE_CHUNK": "late_chunk",
  "CONTEXT_NEARLY_FULL": "context_nearly_full",
  "CONTEXT_FULL": "context_full",
  "GENERATION_FAILED": "generation_failed",
  "NOT_AVAILABLE": "not_available",
  "ONE_VOICE": "one_voice",
  "VOICE_CUT": "voice_cut",
  "RECORDING_STOPPED": "recording_stopped",
  "ENDED_BY_ADMIN": "ended_by_admin",
  "APP_DISABLED": "app_disabled",
  "ORIGIN_REFUSED": "origin_refused",
  "UNAUTHORIZED": "unauthorized",
  "FORBIDDEN": "forbidden",
  "RATE_LIMITED": "rate_limited",
  "NOT_FOUND": "not_found",
  "STILL_WRITING": "still_writing",
  "INTERNAL": "internal"
});

/** How the server closes a socket. */
export const CLOSE_CODES = /** @type {const} */ ({
  "NORMAL": 1000,
  "SHUTDOWN": 1001,
  "BINARY": 1003,
  "BAD_PAYLOAD": 1007,
  "POLICY": 1008,
  "TOO_BIG": 1009,
  "INTERNAL": 1011,
  "TRY_LATER": 1013,
  "REPLACED": 4001
});

/** What the settings of BargeInConfig are when they are left out. */
export const BARGE_IN_CONFIG_DEFAULTS = /** @type {const} */ ({
  "threshold": 0.8,
  "min_speech_duration_ms": 128
});

/** Least and greatest values of BargeInConfig; `above` itself is not allowed. */
export const BARGE_IN_CONFIG_RANGES = /** @type {const} */ ({
  "threshold": {
    "min": 0.05,
    "max": 0.99
  },
  "min_speech_duration_ms": {
    "min": 0,
    "max": 10000
  }
});

/** What the settings of DuplexConfig are when they are left out. */
export const DUPLEX_CONFIG_DEFAULTS = /** @type {const} */ ({
  "generate_audio": true,
  "ls_mode": "explicit",
  "force_listen_count": 3,
  "max_new_speak_tokens_per_chunk": 20,
  "temperature": 0.7,
  "top_k": 20,
  "top_p": 0.8,
  "listen_prob_scale": 1.0,
  "chunk_ms": 1000,
  "sample_rate": 16000,
  "decode_mode": "sampling",
  "listen_top_k": null,
  "text_repetition_penalty": 1.05,
  "text_repetition_window_size": 512,
  "length_penalty": 1.1,
  "tts_temperature": 0.8,
  "max_slice_nums": 1
});

/** Least and greatest values of DuplexConfig; `above` itself is not allowed. */
export const DUPLEX_CONFIG_RANGES = /** @type {const} */ ({
  "force_listen_count": {
    "min": 0,
    "max": 1000
  },
  "max_new_speak_tokens_per_chunk": {
    "min": 1,
    "max": 200
  },
  "temperature": {
    "min": 0,
    "max": 2
  },
  "top_k": {
    "min": 0,
    "max": 200000
  },
  "top_p": {
    "above": 0,
    "max": 1
  },
  "listen_prob_scale": {
    "min": 0,
    "max": 100
  },
  "chunk_ms": {
    "min": 1000,
    "max": 1000
  },
  "sample_rate": {
    "min": 16000,
    "max": 16000
  },
  "listen_top_k": {
    "min": 1,
    "max": 200000
  },
  "text_repetition_penalty": {
    "min": 0.1,
    "max": 5
  },
  "text_repetition_window_size": {
    "min": 0,
    "max": 40960
  },
  "length_penalty": {
    "min": 0.1,
    "max": 5
  },
  "tts_temperature": {
    "min": 0,
    "max": 2
  },
  "max_slice_nums": {
    "min": 1,
    "max": 16
  }
});

/** What the settings of GenerationConfig are when they are left out. */
export const GENERATION_CONFIG_DEFAULTS = /** @type {const} */ ({
  "max_new_tokens": 512,
  "min_new_tokens": 0,
  "do_sample": true,
  "temperature": 0.7,
  "top_p": 0.8,
  "top_k": 100,
  "length_penalty": 1.1,
  "max_inp_length": 8192
});

/** Least and greatest values of GenerationConfig; `above` itself is not allowed. */
export const GENERATION_CONFIG_RANGES = /** @type {const} */ ({
  "max_new_tokens": {
    "min": 1,
    "max": 4096
  },
  "min_new_tokens": {
    "min": 0,
    "max": 4096
  },
  "temperature": {
    "min": 0,
    "max": 2
  },
  "top_p": {
    "above": 0,
    "max": 1
  },
  "top_k": {
    "min": 0,
    "max": 200000
  },
  "length_penalty": {
    "min": 0.1,
    "max": 5
  },
  "max_inp_length": {
    "min": 1,
    "max": 40960
  }
});

/** What the settings of HalfDuplexConfig are when they are left out. */
export const HALF_DUPLEX_CONFIG_DEFAULTS = /** @type {const} */ ({
  "vad": {
    "threshold": 0.8,
    "min_speech_duration_ms": 128,
    "min_silence_duration_ms": 800,
    "speech_pad_ms": 30
  },
  "generation": {
    "max_new_tokens": 256,
    "length_penalty": 1.1,
    "temperature": 0.7
  },
  "tts": {
    "enabled": true
  },
  "session": {
    "timeout_s": 180
  }
});

/** What the settings of ImageConfig are when they are left out. */
export const IMAGE_CONFIG_DEFAULTS = /** @type {const} */ ({
  "max_slice_nums": null,
  "use_image_id": false
});

/** Least and greatest values of ImageConfig; `above` itself is not allowed. */
export const IMAGE_CONFIG_RANGES = /** @type {const} */ ({
  "max_slice_nums": {
    "min": 1,
    "max": 16
  }
});

/** What the settings of SessionConfig are when they are left out. */
export const SESSION_CONFIG_DEFAULTS = /** @type {const} */ ({
  "timeout_s": 180
});

/** Least and greatest values of SessionConfig; `above` itself is not allowed. */
export const SESSION_CONFIG_RANGES = /** @type {const} */ ({
  "timeout_s": {
    "min": 10,
    "max": 3600
  }
});

/** What the settings of StreamingConfig are when they are left out. */
export const STREAMING_CONFIG_DEFAULTS = /** @type {const} */ ({
  "generate_audio": true,
  "ref_audio_path": null,
  "ref_audio_data": null,
  "tts_sampling": {
    "top_p": 0.85,
    "top_k": 25,
    "repetition_penalty": 1.05,
    "temperature": 0.8
  }
});

/** What the settings of TTSConfig are when they are left out. */
export const T_T_S_CONFIG_DEFAULTS = /** @type {const} */ ({
  "enabled": false,
  "mode": "audio_assistant",
  "ref_audio_path": null,
  "ref_audio_data": null,
  "ref_audio_max_ms": null,
  "output_path": null,
  "language": "en",
  "sampling": {
    "top_p": 0.85,
    "top_k": 25,
    "repetition_penalty": 1.05,
    "temperature": 0.8
  }
});

/** Least and greatest values of TTSConfig; `above` itself is not allowed. */
export const T_T_S_CONFIG_RANGES = /** @type {const} */ ({
  "ref_audio_max_ms": {
    "min": 1000
  }
});

/** What the settings of TTSSamplingParams are when they are left out. */
export const T_T_S_SAMPLING_PARAMS_DEFAULTS = /** @type {const} */ ({
  "top_p": 0.85,
  "top_k": 25,
  "repetition_penalty": 1.05,
  "temperature": 0.8
});

/** Least and greatest values of TTSSamplingParams; `above` itself is not allowed. */
export const T_T_S_SAMPLING_PARAMS_RANGES = /** @type {const} */ ({
  "top_p": {
    "above": 0,
    "max": 1
  },
  "top_k": {
    "min": 0,
    "max": 10000
  },
  "repetition_penalty": {
    "min": 0.1,
    "max": 5
  },
  "temperature": {
    "min": 0,
    "max": 2
  }
});

/** What the settings of TurnGenerationConfig are when they are left out. */
export const TURN_GENERATION_CONFIG_DEFAULTS = /** @type {const} */ ({
  "max_new_tokens": 256,
  "length_penalty": 1.1,
  "temperature": 0.7
});

/** Least and greatest values of TurnGenerationConfig; `above` itself is not allowed. */
export const TURN_GENERATION_CONFIG_RANGES = /** @type {const} */ ({
  "max_new_tokens": {
    "min": 1,
    "max": 2048
  },
  "length_penalty": {
    "min": 0.1,
    "max": 5
  },
  "temperature": {
    "min": 0,
    "max": 2
  }
});

/** What the settings of TurnSpeechConfig are when they are left out. */
export const TURN_SPEECH_CONFIG_DEFAULTS = /** @type {const} */ ({
  "enabled": true
});

/** What the settings of VadConfig are when they are left out. */
export const VAD_CONFIG_DEFAULTS = /** @type {const} */ ({
  "threshold": 0.8,
  "min_speech_duration_ms": 128,
  "min_silence_duration_ms": 800,
  "speech_pad_ms": 30
});

/** Least and greatest values of VadConfig; `above` itself is not allowed. */
export const VAD_CONFIG_RANGES = /** @type {const} */ ({
  "threshold": {
    "min": 0.05,
    "max": 0.99
  },
  "min_speech_duration_ms": {
    "min": 0,
    "max": 10000
  },
  "min_silence_duration_ms": {
    "min": 0,
    "max": 10000
  },
  "speech_pad_ms": {
    "min": 0,
    "max": 10000
  }
});

/** What the settings of Generate are when they are left out. */
export const GENERATE_DEFAULTS = /** @type {const} */ ({
  "session_id": null,
  "generate_audio": true,
  "max_new_tokens": 256,
  "length_penalty": 1.1,
  "temperature": 0.7,
  "top_p": 0.8,
  "top_k": 100,
  "do_sample": true
});

/** Least and greatest values of Generate; `above` itself is not allowed. */
export const GENERATE_RANGES = /** @type {const} */ ({
  "max_new_tokens": {
    "min": 1,
    "max": 4096
  },
  "length_penalty": {
    "min": 0.1,
    "max": 5
  },
  "temperature": {
    "min": 0,
    "max": 2
  },
  "top_p": {
    "above": 0,
    "max": 1
  },
  "top_k": {
    "min": 0,
    "max": 200000
  }
});

/** What the settings of HalfDuplexPrepare are when they are left out. */
export const HALF_DUPLEX_PREPARE_DEFAULTS = /** @type {const} */ ({
  "system_prompt": null,
  "system_content": null,
  "ref_audio_base64": null,
  "tts_ref_audio_base64": null,
  "ref_audio_id": null,
  "transcribe": false,
  "config": {
    "vad": {
      "threshold": 0.8,
      "min_speech_duration_ms": 128,
      "min_silence_duration_ms": 800,
      "speech_pad_ms": 30
    },
    "generation": {
      "max_new_tokens": 256,
      "length_penalty": 1.1,
      "temperature": 0.7
    },
    "tts": {
      "enabled": true
    },
    "session": {
      "timeout_s": 180
    }
  }
});

/** What the settings of DuplexPrepare are when they are left out. */
export const DUPLEX_PREPARE_DEFAULTS = /** @type {const} */ ({
  "prefix_system_prompt": "",
  "suffix_system_prompt": null,
  "config": {
    "generate_audio": true,
    "ls_mode": "explicit",
    "force_listen_count": 3,
    "max_new_speak_tokens_per_chunk": 20,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "listen_prob_scale": 1.0,
    "chunk_ms": 1000,
    "sample_rate": 16000,
    "decode_mode": "sampling",
    "listen_top_k": null,
    "text_repetition_penalty": 1.05,
    "text_repetition_window_size": 512,
    "length_penalty": 1.1,
    "tts_temperature": 0.8,
    "max_slice_nums": 1
  },
  "ref_audio_path": null,
  "ref_audio_base64": null,
  "tts_ref_audio_base64": null,
  "ref_audio_id": null,
  "tts_ref_audio_id": null,
  "max_slice_nums": null,
  "deferred_finalize": true,
  "early_audio": false,
  "transcribe": false,
  "barge_in": null
});

/** Least and greatest values of DuplexPrepare; `above` itself is not allowed. */
export const DUPLEX_PREPARE_RANGES = /** @type {const} */ ({
  "max_slice_nums": {
    "min": 1,
    "max": 16
  }
});

/** What the settings of Pause are when they are left out. */
export const PAUSE_DEFAULTS = /** @type {const} */ ({
  "timeout": null
});

/** Least and greatest values of Pause; `above` itself is not allowed. */
export const PAUSE_RANGES = /** @type {const} */ ({
  "timeout": {
    "above": 0
  }
});

/** What the settings of ClientDiagnostic are when they are left out. */
export const CLIENT_DIAGNOSTIC_DEFAULTS = /** @type {const} */ ({
  "metrics": {}
});
