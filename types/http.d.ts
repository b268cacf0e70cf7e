// What the server answers over HTTP, from its OpenAPI document. Written by `make protocol`.

declare namespace Http {
  /** Result of a request. */
  type ActionResult = {
    success: boolean; // Whether it succeeded.
    message: string; // What happened, for a person to read.
  };

  /** Access to administration. */
  type AdminState = {
    needs_token: boolean; // Administration requires a token.
    is_admin: boolean; // This client is an administrator.
  };

  /** An app after a change. */
  type AppChanged = {
    success: boolean; // It was changed.
    app: AppState; // The app.
  };

  /** An app in a public list. */
  type AppInfo = {
    app_id: string; // Id.
    name: string; // Display name.
    route: string; // Path of its page.
  };

  /** The enabled apps. */
  type AppList = {
    apps: Array<AppInfo>; // In the order they are shown.
  };

  /** An app and its state. */
  type AppState = {
    app_id: string; // Id.
    name: string; // Display name.
    route: string; // Path of its page.
    enabled: boolean; // Whether it may be used.
  };

  /** All apps. */
  type AppStateList = {
    apps: Array<AppState>; // In the order they are shown.
  };

  /** An action of an administrator. */
  type AuditEntry = {
    time: string; // When, UTC.
    address: string; // Address; of a public one only its network.
    action: string; // Method and route.
    target: string; // Object of the action.
    details: string; // Parameters.
    status: number; // HTTP status of the response.
  };

  /** Answer to `GET /api/admin/audit`. */
  type AuditList = {
    entries: Array<AuditEntry>; // Newest first.
  };

  /** Answer to `GET /cache`. */
  type CacheList = {
    workers: Array<WorkerCache>; // One entry a slot.
  };

  /** Result of cancelling a waiting request. */
  type Cancelled = {
    success: boolean; // It was waiting and has been cancelled.
  };

  /** A recording whose cleanup failed. */
  type CleanupError = {
    session_id: string;
    message: string;
  };

  /** Result of a cleanup. */
  type CleanupReport = {
    status: "ok" | "skipped";
    dry_run: boolean;
    scanned: number;
    live: number;
    deleted: number;
    deleted_expired: number;
    deleted_capacity: number;
    deleted_orphans: number;
    recovered: number;
    remaining: number;
    remaining_size_mb: number;
    sessions: Array<DeletedSession>;
    errors: Array<CleanupError>;
  };

  /** A comment on a recording. */
  type Comment = {
    comment: string; // The text; empty deletes it.
  };

  /** Result of storing a comment. */
  type CommentKept = {
    status: "ok"; // Always this.
    len: number; // Characters stored.
  };

  /** The server's own voice. */
  type DefaultVoice = {
    name: string; // Display name.
    duration: number; // Length, s.
    sample_rate: number; // Samples per second.
    samples: number; // Number of samples.
    base64: string; // Base64 of float32 samples, mono.
  };

  /** Result of deleting a recording. */
  type Deleted = {
    success: boolean; // It was deleted.
  };

  /** A recording that was, or would be, deleted. */
  type DeletedSession = {
    session_id: string;
    reason: "expired" | "capacity" | "orphan";
    size_bytes: number;
  };

  /** Full-duplex sessions. */
  type DuplexSettings = {
    pause_timeout: number; // Longest pause of a session, s; after that it ends.
    max_session_s: number; // Longest session, s; 0: unlimited.
    max_kv_tokens: number; // Context length, tokens.
    max_backlog_chunks: number; // Audio chunks that may wait; older ones are dropped.
    frame_grace_ms: number; // Time to wait for the camera frame of a chunk, ms.
    max_frames_per_chunk: number; // Newest camera frames used per unit.
  };

  /** Expected duration of requests by type; in a patch, omitted fields are unchanged. */
  type EtaConfig = {
    eta_chat_s: number; // One chat reply, s.
    eta_streaming_s: number; // One streamed turn, s.
    eta_half_duplex_s: number; // A half-duplex session, s.
    eta_audio_duplex_s: number; // An audio duplex session, s.
    eta_omni_duplex_s: number; // An omni duplex session, s.
    eta_duplex_s: number | null; // A duplex session of unspecified kind, s; null: as omni.
    ema_alpha: number | null; // Weight of the newest duration; null: unchanged.
  };

  /** Answer to `GET /api/config/eta`: settings and measurements. */
  type EtaStatus = {
    config: EtaConfig; // Settings in force.
    ema_alpha: number; // Weight of the newest duration.
    ema_chat_s: number | null; // Measured mean, s.
    ema_chat_samples: number; // Durations measured.
    ema_streaming_s: number | null; // Measured mean, s.
    ema_streaming_samples: number; // Durations measured.
    ema_half_duplex_s: number | null; // Measured mean, s.
    ema_half_duplex_samples: number; // Durations measured.
    ema_audio_duplex_s: number | null; // Measured mean, s.
    ema_audio_duplex_samples: number; // Durations measured.
    ema_omni_duplex_s: number | null; // Measured mean, s.
    ema_omni_duplex_samples: number; // Durations measured.
  };

  /** State of a download that runs while the service is up. */
  type FetchProgress = {
    state: "fetching" | "complete" | "failed"; // In one word.
    done_bytes: number; // Bytes that are here.
    total_bytes: number; // Bytes that were missing when it began.
    problem: string | null; // Why it failed, for a person to read.
  };

  /** The part of the configuration that pages receive; it contains no secrets. */
  type FrontendDefaults = {
    playback_delay_ms: number; // Playback buffer, ms.
    default_lang: string | null; // Configured language of the pages.
    languages: Record<string, string>; // Native name of each language, by code.
    max_kv_tokens: number; // Context length, tokens.
    recording: RecordingSettings;
    recording_enabled: boolean;
    half_duplex: HalfDuplexSettings;
    duplex: DuplexSettings;
    limits: LimitSettings;
  };

  /** A reply as the gateway returns it. */
  type GatewayChatResponse = {
    text: string; // The reply's text.
    audio_path: string | null; // File of the spoken reply.
    audio_data: string | null; // The spoken reply: over HTTP, Base64 of a WAV file.
    audio_sample_rate: number; // Samples per second of the reply.
    tokens_generated: number; // Tokens of the reply.
    duration_ms: number; // Duration, ms.
    prompt: string | null; // The prompt, if requested.
    token_stats: TokenStats | null; // Token counts of the reply.
    recording_session_id: string | null; // Name of the recording.
    error: string | null; // Why there is no reply.
    success: boolean; // There is a reply.
    queue_wait_ms: number; // Time spent in the queue, ms.
    estimated_queue_wait_s: number; // Wait estimated when the request arrived, s.
    session_secret: string | null; // Proves that a request about the recording is its owner's.
  };

  /** Half-duplex sessions: defaults for what `prepare` leaves out. */
  type HalfDuplexSettings = {
    timeout_s: number; // Longest time without audio, s; after that the session ends.
    max_session_s: number; // Longest session, s; 0: unlimited.
    vad_threshold: number; // Speech probability at which speech begins.
    vad_min_speech_duration_ms: number; // Shortest speech, ms; anything shorter counts as noise.
    vad_min_silence_duration_ms: number; // Silence that ends a turn, ms.
    vad_speech_pad_ms: number; // Audio kept before and after the speech, ms.
  };

  /** Answer to `GET /health`. */
  type HealthAnswer = {
    status: "healthy"; // Always this.
    timestamp: string; // Current time, UTC.
    ready: boolean; // The gateway runs, and a worker is in service.
    workers_ready: number; // Workers in service.
    workers_total: number; // All workers.
  };

  /** Answer to `GET /api/admin/history`: columns of equal length. */
  type History = {
    period_s: number; // Time between two points, s.
    t: Array<number>; // Times, Unix seconds, oldest first.
    series: Record<string, Array<number | null>>; // By name: sessions.<mode>, queue.length, queue.oldest_wait_s, unit.p50_ms, unit.p99_ms, unit.count, refused.count, vram_used_mb.<worker>; null where not known.
  };

  /** Whether new requests are accepted. */
  type Intake = {
    paused: boolean; // New requests are refused; waiting and running ones continue.
  };

  /** Sizes, durations, counts and rates. Limits of the protocol can be lowered, not raised. */
  type LimitSettings = {
    chat_message_bytes: number; // Longest message on /ws/streaming and /ws/chat, bytes.
    prepare_bytes: number; // Longest `prepare` message of half duplex and duplex, bytes.
    live_message_bytes: number; // Longest other message of half duplex and duplex, bytes.
    chunk_max_s: number; // Longest audio chunk of a call, s.
    reference_max_s: number; // Longest voice sample, s.
    chat_audio_max_s: number; // Longest audio item of a chat message, s.
    frame_max_bytes: number; // Largest camera frame, bytes.
    frame_max_side_px: number; // Longest side of a camera frame, px.
    reference_upload_bytes: number; // Largest upload of a voice, bytes.
    recording_upload_bytes: number; // Largest upload of a browser recording, bytes.
    recording_uploads_per_client: number; // Browser recordings uploaded per client address and day, bytes in all.
    comment_chars: number; // Longest comment on a recording, characters.
    diagnostic_bytes: number; // Longest client_diagnostic message, bytes.
    diagnostics_per_s: number; // client_diagnostic messages accepted per second and session.
    diagnostic_session_bytes: number; // client_diagnostic data stored per session, bytes.
    resume_grace_s: number; // Time that a session waits for its disconnected client to come back, s; 0: it ends at once.
    max_connections: number; // Concurrent WebSockets.
    connections_per_client: number; // Concurrent WebSockets per client address.
    waiting_per_client: number; // Requests per client address that may wait in the queue.
    bytes_held: number; // Memory for requests and messages in transit to workers, bytes. Each WebSocket may use 512 KiB beyond it, so that calls continue while waiting requests use all of it.
    bytes_held_per_client: number; // The same per client address, bytes.
    requests_per_minute: number; // HTTP requests and new WebSockets per client address and minute.
    heartbeat_s: number; // Interval of WebSocket pings, and time to wait for a pong, s.
  };

  /** A recording in a list. */
  type ListedRecording = {
    id: string; // Its id.
    app_type: RequestType | null; // Kind of conversation.
    title: string; // A neutral name.
    created_at: string; // Start, UTC.
    duration_s: number | null; // Duration, s.
    bytes: number; // Size of its files.
    has_comment: boolean; // It has a comment.
    has_upload: boolean; // It has a browser's own recording.
    is_running: boolean; // It is still being written.
    status: Status | null; // Its status; null: unknown.
    problem: string | null; // Why it is incomplete.
  };

  /** Progress of loading a model. */
  type LoadState = {
    worker_id: string; // The worker.
    stage: string; // Current stage, as text for people.
    progress: number | null; // Loaded fraction, 0 to 1.
  };

  /** A line of a log. */
  type LogLine = {
    text: string; // Its text, without time and level if those are known.
    time: string | null; // Time, as written by the program.
    level: string | null; // Level: info, warning and so on.
  };

  /** Answer to `GET /api/admin/logs`. */
  type LogPart = {
    source: string; // The program.
    sources: Array<string>; // Programs with logs.
    lines: Array<LogLine>; // Oldest first.
    cursor: string; // Pass it to get the lines that follow.
    has_more: boolean; // More lines are available now.
    was_turned_over: boolean; // The log was rotated since the cursor.
  };

  /** The loaded model. */
  type ModelFacts = {
    name: string; // Display name.
    kind: ModelKind; // Kind of model.
    parameters: number | null; // Number of weights without the vocoder.
    device: string; // cpu, or cuda and the GPU's name.
    dtype: string | null; // Type of its weights.
    try_saying: Array<string>; // Sentences it can answer.
    is_demonstration: boolean; // It shows the system, not the model's abilities.
  };

  /** Kind of model that a worker serves. */
  type ModelKind = "full" | "tiny_random" | "nano" | "cascade" | "fake" | "unknown";

  /** A preset of a mode. */
  type Preset = {
    id: string; // Unique in its mode.
    order: number; // Sort key.
    name: string | Record<string, string>; // Display name.
    description: string | Record<string, string>; // Description.
    system_prompt: string | null; // Duplex: the system prompt.
    ref_audio_path: string | null; // Duplex: the voice, as in `path`.
    ref_audio: PresetAudio | null; // Duplex: the same as an item.
    system_content: Array<PresetText | PresetAudio>; // Turn-based and half duplex: the system message.
    settings: Record<string, unknown> | null; // Settings of the page.
  };

  /** A voice sample of the system content; its audio is fetched separately. */
  type PresetAudio = {
    type: "audio"; // Kind of item.
    data: null; // Always null in a list.
    path: string; // Below the assets folder; `default` is the server's own voice.
    name: string; // Display name.
    duration: number | null; // Length, s, if known.
  };

  /** A voice sample with its audio. */
  type PresetSound = {
    data: string; // Base64 of float32 samples, mono, 16 kHz.
    name: string; // Display name.
    duration: number; // Length, s.
  };

  /** Answer to `GET /api/presets/{mode}/{preset_id}/audio`. */
  type PresetSounds = {
    system_content_audio: Array<PresetSound>; // In the order of the audio items.
    ref_audio: PresetSound | null; // Of duplex presets.
  };

  /** Text of the system content. */
  type PresetText = {
    type: "text"; // Kind of item.
    text: string; // The text.
  };

  /** One waiting request. */
  type QueueItem = {
    ticket_id: string; // Ticket id.
    request_type: RequestType; // Request type.
    session_id: string | null; // Session.
    position: number; // 1 is next.
    estimated_wait_s: number; // Estimated wait, s.
    enqueued_at: string; // When it entered the queue.
    wait_elapsed_s: number; // Time in the queue so far, s.
  };

  /** Answer to `GET /api/queue`. */
  type QueueStatus = {
    queue_length: number; // Number of waiting requests.
    max_queue_size: number; // Maximum number of waiting requests.
    items: Array<QueueItem>; // Waiting requests, next first.
    running_tasks: Array<RunningTaskInfo>; // Requests being served.
  };

  /** Phase of a client's socket at the gateway. */
  type QueueingPhase = "open" | "waiting" | "connecting" | "relaying" | "closed";

  /** A page of the list, and totals of all recordings. */
  type RecordingPage = {
    total: number; // Number of recordings.
    total_bytes: number; // Size of all recordings.
    recordings: Array<ListedRecording>; // The requested page, in order.
  };

  /** Recordings of conversations. */
  type RecordingSettings = {
    enabled: boolean; // Record sessions.
    session_retention_days: number; // Days that recordings are kept; -1: forever.
    max_storage_gb: number; // Total size, GB, beyond which the least recently used are deleted; -1: unlimited.
    min_free_gb: number; // Nothing is recorded while less disk space than this is free, GB.
    store: string; // Object store for finished recordings: s3://BUCKET/PREFIX, gs://, az:// or file://; empty: they stay in data_dir.
    direct: boolean; // Redirect media requests to signed URLs of the store (s3, gs, az), valid for an hour; the store's CORS rules must allow the pages.
    keep_local_h: number; // Hours that a worker keeps its copy of an uploaded recording.
    checkpoint_upload_s: number; // Interval for uploading the recording of a running session, s; 0: only when it has ended.
  };

  /** An uploaded voice. */
  type RefAudio = {
    id: string; // Id.
    name: string; // Display name.
    filename: string; // File name in the registry's folder.
    source_type: "upload"; // Origin.
    duration_ms: number; // Length, ms.
    sample_rate: number; // Samples per second.
    created_at: string; // When it was uploaded, UTC.
  };

  /** Result of an upload or a deletion. */
  type RefAudioChanged = {
    success: boolean; // It worked.
    id: string; // The voice.
    name: string | null; // Display name.
    message: string; // Result as text for people.
  };

  /** The uploaded voices. */
  type RefAudioList = {
    total: number; // Number of voices.
    ref_audios: Array<RefAudio>; // Oldest first.
  };

  /** Type of a queued request. */
  type RequestType = "chat" | "streaming" | "half_duplex_audio" | "audio_duplex" | "omni_duplex" | "duplex";

  /** A request that a worker is serving. */
  type RunningTaskInfo = {
    worker_id: string; // The worker.
    request_type: RequestType; // Request type.
    session_id: string | null; // Session.
    started_at: string; // When it was assigned.
    elapsed_s: number; // Time since then, s.
    estimated_remaining_s: number; // Estimated time left, s.
  };

  /** Answer to `GET /status`. */
  type ServiceStatus = {
    gateway_healthy: boolean; // Always true in an answer.
    total_workers: number; // All workers.
    idle_workers: number; // Ready workers without a session.
    busy_workers: number; // Workers with a session, duplex included.
    free_slots: number; // Sessions that could start now.
    duplex_workers: number; // Workers in a duplex session.
    loading_workers: number; // Workers loading their model.
    error_workers: number; // Workers that failed.
    offline_workers: number; // Unreachable workers.
    queue_length: number; // Number of waiting requests.
    max_queue_size: number; // Maximum number of waiting requests.
    running_tasks: Array<RunningTaskInfo>; // Requests being served.
    is_intake_paused: boolean; // New requests are refused.
    model: ModelFacts | null; // The loaded model; null until there is one.
    loading: LoadState | null; // Progress of the first worker loading.
    fetch: FetchProgress | null; // Progress of downloading the embedded cascade; null: no download.
  };

  /** A connected session, or a conversation in a worker's cache. */
  type SessionInfo = {
    session_id: string; // Session id; empty for a cached conversation.
    request_type: RequestType | null; // Request type.
    worker_id: string | null; // Its worker, if assigned.
    phase: QueueingPhase | null; // Its phase.
    messages_hash: string | null; // Prefix of its history's hash.
    last_active: string | null; // When it began, or was last used.
  };

  /** Answer to `GET /sessions`. */
  type SessionList = {
    total: number; // Number of sessions.
    sessions: Array<SessionInfo>; // All sessions.
  };

  /** Progress of a recording. */
  type Status = "recording" | "finalizing" | "ready" | "failed";

  /** Result of a stop. */
  type StopAnswer = {
    success: boolean; // Stopped.
    session_id: string; // Session id.
    message: string; // Result as text for people.
  };

  /** Result of stopping streaming replies. */
  type StopSomeAnswer = {
    success: boolean; // All requested replies were stopped.
    stopped: Array<StoppedReply>; // One result per session.
    message: string; // Result as text for people.
  };

  /** Result for one session. */
  type StoppedReply = {
    session_id: string; // Session id.
    worker_id: string | null; // Its worker.
    success: boolean; // Stopped.
    message: string; // Result as text for people.
  };

  /** A ticket in the queue. */
  type TicketInfo = {
    ticket_id: string; // Ticket id.
    request_type: RequestType; // Request type.
    session_id: string | null; // Session.
    enqueued_at: string; // When it entered the queue.
    position: number; // 1 is next, 0 is assigned.
    estimated_wait_s: number; // Estimated wait, s.
    cancelled: boolean; // Cancelled.
  };

  /** Answer to `GET /api/queue/{ticket_id}`. */
  type TicketLookup = {
    found: boolean; // The ticket waits.
    ticket: TicketInfo | null; // The ticket.
    message: string | null; // Why it was not found.
  };

  /** Token counts of one turn. */
  type TokenStats = {
    cached_tokens: number; // Tokens already in the KV cache.
    input_tokens: number; // Tokens fed for this turn.
    generated_tokens: number; // Tokens of the reply.
    total_tokens: number; // Tokens in the KV cache afterwards.
  };

  /** Result of uploading a browser's recording. */
  type UploadKept = {
    status: "ok"; // Always this.
    path: string; // Its name among the recording's files.
    size_bytes: number; // Its size, bytes.
  };

  /** The cache of one slot. */
  type WorkerCache = {
    worker_id: string; // The worker.
    status: WorkerStatus; // Its status.
    cached_hash: string | null; // Prefix of the history's hash.
    last_cache_used_at: string | null; // Last use of the cache.
  };

  /** A worker as seen by the gateway. */
  type WorkerInfo = {
    worker_id: string; // worker_0, worker_1, ...
    host: string; // Its host.
    port: number; // Its port.
    gpu_id: number | null; // Its GPU.
    status: WorkerStatus; // Its status.
    current_session_id: string | null; // Oldest session on it.
    total_requests: number; // Requests since it started.
    avg_inference_time_ms: number; // Mean time of a request, ms.
    last_heartbeat: string | null; // When it last answered.
    current_request_type: RequestType | null; // Type of that session.
    task_started_at: string | null; // When it was assigned.
    cached_hash: string | null; // Hash of the history in its cache.
    last_cache_used_at: string | null; // When that cache was last used.
    slots: number; // Number of concurrent sessions.
    free_slots: number; // Sessions it could accept now.
    is_draining: boolean; // It finishes its sessions and gets no new ones.
    error: string | null; // The error it reports.
    last_error: string | null; // The latest error, even if resolved.
    last_error_at: string | null; // When that was.
    vram_used_mb: number | null; // GPU memory in use, MB.
    vram_total_mb: number | null; // GPU memory, MB.
    kv_cache_tokens: number; // Tokens in its caches.
    uptime_s: number | null; // Uptime of its process, s.
    sessions: Array<WorkerSession>; // Oldest first.
    model: ModelFacts | null; // The model it has loaded.
    loading: LoadState | null; // Progress of loading.
    can_restart: boolean; // A launcher restarts it when it exits.
    is_restarting: boolean; // A restart was requested.
  };

  /** Answer to `GET /workers`. */
  type WorkerList = {
    total: number; // Number of workers.
    workers: Array<WorkerInfo>; // All workers.
  };

  /** A session on a worker. */
  type WorkerSession = {
    session_id: string | null; // Session.
    request_type: RequestType; // Request type.
    started_at: string; // When it was assigned.
  };

  /** Status of a worker. */
  type WorkerStatus = "loading" | "idle" | "error" | "offline" | "busy_chat" | "busy_streaming" | "busy_half_duplex" | "duplex_active" | "duplex_paused";

  /** The configured workers. */
  type WorkersListed = {
    workers: Array<string>; // host:port, or dns:NAME:PORT for one at each address of the name.
  };

  /** What GET answers, by path. */
  type GetAnswers = {
    "/health": HealthAnswer;
    "/api/config/eta": EtaStatus;
    "/api/sessions/{recording_id}/comment": Comment;
    "/api/apps": AppList;
    "/api/admin/state": AdminState;
    "/status": ServiceStatus;
    "/workers": WorkerList;
    "/api/cache": CacheList;
    "/cache": CacheList;
    "/api/sessions": SessionList;
    "/sessions": SessionList;
    "/api/queue": QueueStatus;
    "/api/queue/{ticket_id}": TicketLookup;
    "/api/admin/apps": AppStateList;
    "/api/admin/intake": Intake;
    "/api/admin/workers": WorkersListed;
    "/api/admin/recordings": RecordingPage;
    "/api/admin/history": History;
    "/api/admin/logs": LogPart;
    "/api/admin/audit": AuditList;
    "/api/frontend_defaults": FrontendDefaults;
    "/api/presets": Record<string, Array<Preset>>;
    "/api/presets/{mode}/{preset_id}/audio": PresetSounds;
    "/api/default_ref_audio": DefaultVoice;
    "/api/assets/ref_audio": RefAudioList;
  };
}
