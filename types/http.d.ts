// What the server answers over HTTP, from its OpenAPI document. Written by `make protocol`.

declare namespace Http {
  /** Result of a request. */
  type ActionResult = {
    success: boolean; // Whether it succeeded.
    message: string; // What happened, for a person to read.
  };

  /** What a page needs to know before it shows administration. */
  type AdminState = {
    needs_token: boolean; // Administration takes a token.
    is_admin: boolean; // This client may administrate.
  };

  /** An app as it is now. */
  type AppChanged = {
    success: boolean; // It was changed.
    app: AppState; // The app.
  };

  /** An app in a public list. */
  type AppInfo = {
    app_id: string; // Its name for programs.
    name: string; // Its name for people.
    route: string; // Where its page is.
  };

  /** The apps that may be used. */
  type AppList = {
    apps: Array<AppInfo>; // In the order they are shown.
  };

  /** An app as administrators see it. */
  type AppState = {
    app_id: string; // Its name for programs.
    name: string; // Its name for people.
    route: string; // Where its page is.
    enabled: boolean; // It may be used.
  };

  /** Every app. */
  type AppStateList = {
    apps: Array<AppState>; // In the order they are shown.
  };

  /** One thing an administrator did. */
  type AuditEntry = {
    time: string; // When, UTC.
    address: string; // From where; of a public address only its network.
    action: string; // Method and route.
    target: string; // What it was done to.
    details: string; // What was asked for.
    status: number; // HTTP status of the answer.
  };

  /** Answer to `GET /api/admin/audit`. */
  type AuditList = {
    entries: Array<AuditEntry>; // Newest first.
  };

  /** Answer to `GET /cache`. */
  type CacheList = {
    workers: Array<WorkerCache>; // One entry a slot.
  };

  /** Whether a waiting request was cancelled. */
  type Cancelled = {
    success: boolean; // It was waiting and is not any more.
  };

  /** One recording that could not be dealt with. */
  type CleanupError = {
    session_id: string;
    message: string;
  };

  /** What a cleanup did, or would do. */
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

  /** A comment was kept. */
  type CommentKept = {
    status: "ok"; // Always this.
    len: number; // Characters kept.
  };

  /** The server's own voice. */
  type DefaultVoice = {
    name: string; // Its name for people.
    duration: number; // Length, s.
    sample_rate: number; // Samples per second.
    samples: number; // How many there are.
    base64: string; // Base64 of float32 samples, mono.
  };

  /** A recording was deleted. */
  type Deleted = {
    success: boolean; // It was deleted.
  };

  /** One recording that was, or would be, deleted. */
  type DeletedSession = {
    session_id: string;
    reason: "expired" | "capacity" | "orphan";
    size_bytes: number;
  };

  /** Full duplex. */
  type DuplexSettings = {
    pause_timeout: number; // A paused session ends after this, s.
    max_session_s: number; // A session ends after this, s; 0: never.
    max_kv_tokens: number; // Longest context, tokens.
    max_backlog_chunks: number; // Chunks that may wait.
    frame_grace_ms: number; // Wait for a chunk's frame, ms.
    max_frames_per_chunk: number; // Newest frames used of one unit.
  };

  /** How long requests usually take, by type; as a patch, what is left out stays as it is. */
  type EtaConfig = {
    eta_chat_s: number; // One chat reply, s.
    eta_streaming_s: number; // One streamed turn, s.
    eta_half_duplex_s: number; // A half-duplex session, s.
    eta_audio_duplex_s: number; // An audio duplex session, s.
    eta_omni_duplex_s: number; // An omni duplex session, s.
    eta_duplex_s: number | null; // A duplex session of unnamed kind, s; null: as omni.
    ema_alpha: number | null; // Weight of the newest duration; null leaves it.
  };

  /** Answer to `GET /api/config/eta`: the settings and what was measured. */
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

  /** The state of a fetch that runs beside the service. */
  type FetchProgress = {
    state: "fetching" | "complete" | "failed"; // In one word.
    done_bytes: number; // Bytes that are here.
    total_bytes: number; // Bytes that were missing when it began.
    problem: string | null; // Why it failed, for a person to read.
  };

  /** What a page needs to know of the configuration; nothing secret. */
  type FrontendDefaults = {
    playback_delay_ms: number; // Buffer before playing, ms.
    default_lang: string | null; // Language, if the server says.
    languages: Record<string, string>; // What each language calls itself, by code.
    max_kv_tokens: number; // Longest context, tokens.
    recording: RecordingSettings; // What is recorded and how long it is kept.
    recording_enabled: boolean; // Sessions are recorded.
    half_duplex: HalfDuplexSettings; // Defaults of half duplex.
    duplex: DuplexSettings; // Limits of duplex.
    limits: LimitSettings; // Sizes and lengths.
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

  /** Half duplex: what a session gets unless its `prepare` says otherwise. */
  type HalfDuplexSettings = {
    timeout_s: number; // Ends after this without audio, s.
    max_session_s: number; // A session ends after this, s; 0: never.
    vad_threshold: number; // Speech begins at this probability.
    vad_min_speech_duration_ms: number; // Shorter bursts are noise, ms.
    vad_min_silence_duration_ms: number; // Silence that ends a turn, ms.
    vad_speech_pad_ms: number; // Kept around the speech, ms.
  };

  /** Answer to `GET /health`: that there is one says that the gateway lives. */
  type HealthAnswer = {
    status: "healthy"; // Always this.
    timestamp: string; // The gateway's clock, UTC.
    ready: boolean; // New requests are accepted and some worker can serve them.
    workers_ready: number; // Workers that serve a request or could.
    workers_total: number; // All workers.
  };

  /** Answer to `GET /api/admin/history`: columns of equal length, as charts want them. */
  type History = {
    period_s: number; // Time between two points, s.
    t: Array<number>; // Times, Unix seconds, oldest first.
    series: Record<string, Array<number | null>>; // By name: sessions.<mode>, queue.length, queue.oldest_wait_s, unit.p50_ms, unit.p99_ms, unit.count, refused.count, vram_used_mb.<worker>; null where not known.
  };

  /** Whether new requests are accepted. */
  type Intake = {
    paused: boolean; // New requests are refused; those that wait or run continue.
  };

  /** Sizes, lengths, counts and rates; the wire's own limits can be lowered, never raised. */
  type LimitSettings = {
    chat_message_bytes: number; // One message of /ws/streaming and /ws/chat, bytes.
    prepare_bytes: number; // `prepare` of half duplex and duplex, bytes.
    live_message_bytes: number; // Any other message of half duplex and duplex, bytes.
    chunk_max_s: number; // One chunk of a live call, s.
    reference_max_s: number; // A voice sample, s.
    chat_audio_max_s: number; // An audio item, s.
    frame_max_bytes: number; // A camera picture, bytes.
    frame_max_side_px: number; // Its longer side, px.
    reference_upload_bytes: number; // An uploaded voice, bytes.
    recording_upload_bytes: number; // An uploaded browser recording, bytes.
    comment_chars: number; // A comment on a recording.
    diagnostic_bytes: number; // One client_diagnostic, bytes.
    diagnostics_per_s: number; // client_diagnostic per second.
    diagnostic_session_bytes: number; // client_diagnostic kept of a session, bytes.
    resume_grace_s: number; // How long a session waits for its lost client, s; 0: never.
    max_connections: number; // WebSockets at once.
    connections_per_client: number; // WebSockets of one client at once.
    waiting_per_client: number; // Requests of one client that may wait for a worker at once.
    bytes_held: number; // Of requests and messages that are on their way to a worker, bytes.
    bytes_held_per_client: number; // The same of one client, bytes.
    requests_per_minute: number; // HTTP requests and new sockets of one client.
    heartbeat_s: number; // Time between pings, and to wait for pongs, s.
  };

  /** One recording in a list. */
  type ListedRecording = {
    id: string; // Its id.
    app_type: RequestType | null; // Which kind of conversation it was.
    title: string; // A neutral name.
    created_at: string; // When it started, UTC.
    duration_s: number | null; // How long it lasted, s.
    bytes: number; // Size of its files.
    has_comment: boolean; // Somebody commented on it.
    has_upload: boolean; // A browser's own recording is with it.
    is_running: boolean; // It is still being written.
    status: Status | null; // How far it has come; null: it does not say.
    problem: string | null; // Why it is not complete.
  };

  /** How far the loading of a model has come. */
  type LoadState = {
    worker_id: string; // The worker.
    stage: string; // What loading does now, for a person.
    progress: number | null; // How much is loaded, 0 to 1.
  };

  /** One line. */
  type LogLine = {
    text: string; // What it says, without time and level if those are known.
    time: string | null; // Time, as the program wrote it.
    level: string | null; // How important: info, warning and so on.
  };

  /** Answer to `GET /api/admin/logs`. */
  type LogPart = {
    source: string; // Whose log it is.
    sources: Array<string>; // Whose logs there are.
    lines: Array<LogLine>; // Oldest first.
    cursor: string; // Send it next time to get what follows.
    has_more: boolean; // More is there already.
    was_turned_over: boolean; // A new file has begun since the last time.
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

  /** One preset of a mode. */
  type Preset = {
    id: string; // Unique in its mode.
    order: number; // Smaller is shown first.
    name: string | Record<string, string>; // Name for people.
    description: string | Record<string, string>; // What it is for.
    system_prompt: string | null; // Duplex: the system prompt.
    ref_audio_path: string | null; // Duplex: the voice, as in `path`.
    ref_audio: PresetAudio | null; // Duplex: the same as an item.
    system_content: Array<PresetText | PresetAudio>; // Turn-based and half duplex: the system message.
    settings: Record<string, unknown> | null; // What the page is set to.
  };

  /** A voice sample of the system content; its audio is fetched on its own. */
  type PresetAudio = {
    type: "audio"; // Kind of item.
    data: null; // Always null in a list.
    path: string; // Below the assets folder; `default` is the server's own voice.
    name: string; // Its name for people.
    duration: number | null; // Length, s, if known.
  };

  /** A voice sample with its audio. */
  type PresetSound = {
    data: string; // Base64 of float32 samples, mono, 16 kHz.
    name: string; // Its name for people.
    duration: number; // Length, s.
  };

  /** Answer to `GET /api/presets/{mode}/{preset_id}/audio`. */
  type PresetSounds = {
    system_content_audio: Array<PresetSound>; // In the order of the audio items.
    ref_audio: PresetSound | null; // Of duplex presets.
  };

  /** A piece of text of the system content. */
  type PresetText = {
    type: "text"; // Kind of item.
    text: string; // The text.
  };

  /** One waiting request. */
  type QueueItem = {
    ticket_id: string; // Its id.
    request_type: RequestType; // What it is for.
    session_id: string | null; // Whose it is.
    position: number; // 1 is next.
    estimated_wait_s: number; // Estimated wait, s.
    enqueued_at: string; // When it was drawn.
    wait_elapsed_s: number; // How long it has waited, s.
  };

  /** Answer to `GET /api/queue`. */
  type QueueStatus = {
    queue_length: number; // How many requests wait.
    max_queue_size: number; // How many may wait.
    items: Array<QueueItem>; // Who waits, next first.
    running_tasks: Array<RunningTaskInfo>; // What is being served.
  };

  /** Phase of a client's socket at the gateway. */
  type QueueingPhase = "open" | "waiting" | "connecting" | "relaying" | "closed";

  /** A part of the list, and what all recordings add up to. */
  type RecordingPage = {
    total: number; // How many recordings there are.
    total_bytes: number; // Size of them all.
    recordings: Array<ListedRecording>; // Those asked for, in order.
  };

  /** What is kept of conversations. */
  type RecordingSettings = {
    enabled: boolean; // Record sessions.
    session_retention_days: number; // Days kept; -1: for ever.
    max_storage_gb: number; // Room for recordings, GB; -1: any.
    min_free_gb: number; // Nothing is recorded with less of the disk free, GB.
    store: string; // Where complete recordings go: s3://BUCKET/PREFIX, gs://, az:// or file://; empty: they stay in the data folder.
    direct: boolean; // Clients fetch sound, pictures and films of the store (s3, gs, az) by signed URLs of its own, which end after an hour; the store has to allow it to pages.
    keep_local_h: number; // A worker keeps what the store has for so long, hours.
    checkpoint_upload_s: number; // Upload what a running talk has so often, s; 0: never.
  };

  /** One voice in a list. */
  type RefAudio = {
    id: string; // Its name for programs.
    name: string; // Its name for people.
    filename: string; // The file's name in the registry's folder.
    source_type: "upload"; // Where it comes from.
    duration_ms: number; // Length, ms.
    sample_rate: number; // Samples per second.
    created_at: string; // When it was uploaded, UTC.
  };

  /** What became of an upload or a deletion. */
  type RefAudioChanged = {
    success: boolean; // It worked.
    id: string; // The voice.
    name: string | null; // Its name for people.
    message: string; // What happened, for a person to read.
  };

  /** The uploaded voices. */
  type RefAudioList = {
    total: number; // How many there are.
    ref_audios: Array<RefAudio>; // Oldest first.
  };

  /** Type of a queued request. */
  type RequestType = "chat" | "streaming" | "half_duplex_audio" | "audio_duplex" | "omni_duplex" | "duplex";

  /** One request a worker is serving. */
  type RunningTaskInfo = {
    worker_id: string; // The worker.
    request_type: RequestType; // What it serves.
    session_id: string | null; // Whose it is.
    started_at: string; // When it was assigned.
    elapsed_s: number; // Time since then, s.
    estimated_remaining_s: number; // Estimated time left, s.
  };

  /** Answer to `GET /status`. */
  type ServiceStatus = {
    gateway_healthy: boolean; // Always true in an answer.
    total_workers: number; // All workers.
    idle_workers: number; // Ready workers without a session.
    busy_workers: number; // Workers that serve somebody, duplex included.
    free_slots: number; // Sessions that could begin now.
    duplex_workers: number; // Workers in a duplex session.
    loading_workers: number; // Workers that load their model.
    error_workers: number; // Workers that failed.
    offline_workers: number; // Workers out of reach.
    queue_length: number; // How many requests wait.
    max_queue_size: number; // How many may wait.
    running_tasks: Array<RunningTaskInfo>; // What is being served.
    is_intake_paused: boolean; // New requests are refused.
    model: ModelFacts | null; // What is loaded; null until it is.
    loading: LoadState | null; // How far the first loading worker is.
    fetch: FetchProgress | null; // How far the fetch of the embedded cascade is; null: there is none.
  };

  /** One connected session, or a conversation that a worker still has cached. */
  type SessionInfo = {
    session_id: string; // The session; empty for a remembered conversation.
    request_type: RequestType | null; // What it is.
    worker_id: string | null; // Its worker, if it has one now.
    phase: QueueingPhase | null; // Where it stands.
    messages_hash: string | null; // Start of its history's hash.
    last_active: string | null; // When it began, or was used.
  };

  /** Answer to `GET /sessions`. */
  type SessionList = {
    total: number; // How many there are.
    sessions: Array<SessionInfo>; // All of them.
  };

  /** How far a recording has come. */
  type Status = "recording" | "finalizing" | "ready" | "failed";

  /** What became of a stop. */
  type StopAnswer = {
    success: boolean; // It was stopped.
    session_id: string; // Whose.
    message: string; // What happened, for a person to read.
  };

  /** What became of a stop of streaming. */
  type StopSomeAnswer = {
    success: boolean; // Everything that was asked for was stopped.
    stopped: Array<StoppedReply>; // One by one.
    message: string; // What happened, for a person to read.
  };

  /** One reply that was, or was not, stopped. */
  type StoppedReply = {
    session_id: string; // Whose.
    worker_id: string | null; // Where.
    success: boolean; // It was stopped.
    message: string; // What happened, for a person to read.
  };

  /** A ticket as the queue administration shows it. */
  type TicketInfo = {
    ticket_id: string; // Its id.
    request_type: RequestType; // What it is for.
    session_id: string | null; // Whose it is.
    enqueued_at: string; // When it was drawn.
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

  /** A browser's recording was kept. */
  type UploadKept = {
    status: "ok"; // Always this.
    path: string; // Its name among the recording's files.
    size_bytes: number; // Its size, bytes.
  };

  /** What one worker's cache holds. */
  type WorkerCache = {
    worker_id: string; // The worker.
    status: WorkerStatus; // What it is doing.
    cached_hash: string | null; // Start of the history's hash.
    last_cache_used_at: string | null; // When it was last used.
  };

  /** One worker as the gateway sees it. */
  type WorkerInfo = {
    worker_id: string; // worker_0, worker_1, ...
    host: string; // Where it listens.
    port: number; // Where it listens.
    gpu_id: number | null; // Its GPU.
    status: WorkerStatus; // What it is doing.
    current_session_id: string | null; // Session it has served longest.
    total_requests: number; // Requests since it started.
    avg_inference_time_ms: number; // Mean time of a request, ms.
    last_heartbeat: string | null; // When it last answered.
    current_request_type: RequestType | null; // What that session is.
    task_started_at: string | null; // When it was assigned.
    cached_hash: string | null; // History its cache holds.
    last_cache_used_at: string | null; // When that was last used.
    slots: number; // Sessions it takes at once.
    free_slots: number; // Sessions it could take now.
    is_draining: boolean; // It finishes what it has and gets nothing new.
    error: string | null; // What it says is wrong.
    last_error: string | null; // What was wrong last, also if it is mended.
    last_error_at: string | null; // When that was.
    vram_used_mb: number | null; // GPU memory in use, MB.
    vram_total_mb: number | null; // GPU memory, MB.
    kv_cache_tokens: number; // Tokens in its caches.
    uptime_s: number | null; // Time since its process began, s.
    sessions: Array<WorkerSession>; // Oldest first.
    model: ModelFacts | null; // What it has loaded.
    loading: LoadState | null; // How far loading has come.
    can_restart: boolean; // A launcher starts it again when it ends.
    is_restarting: boolean; // It was asked to end and to start again.
  };

  /** Answer to `GET /workers`. */
  type WorkerList = {
    total: number; // How many there are.
    workers: Array<WorkerInfo>; // All of them.
  };

  /** One session a worker serves. */
  type WorkerSession = {
    session_id: string | null; // Whose it is.
    request_type: RequestType; // What it is.
    started_at: string; // When it was assigned.
  };

  /** Status of a worker. */
  type WorkerStatus = "loading" | "idle" | "error" | "offline" | "busy_chat" | "busy_streaming" | "busy_half_duplex" | "duplex_active" | "duplex_paused";

  /** Where the workers are. */
  type WorkersListed = {
    workers: Array<string>; // host:port, or dns:NAME:PORT for one at each address of the name.
  };

  /** What GET answers, by path. */
  type GetAnswers = {
    "/health": HealthAnswer;
    "/status": ServiceStatus;
    "/workers": WorkerList;
    "/api/cache": CacheList;
    "/cache": CacheList;
    "/api/sessions": SessionList;
    "/sessions": SessionList;
    "/api/queue": QueueStatus;
    "/api/queue/{ticket_id}": TicketLookup;
    "/api/config/eta": EtaStatus;
    "/api/sessions/{recording_id}/comment": Comment;
    "/api/apps": AppList;
    "/api/admin/state": AdminState;
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
