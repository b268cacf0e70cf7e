// @ts-check
/** What the server answers to administrators, as far as the page needs it. Pure. */

/**
 * @typedef {"chat" | "streaming" | "half_duplex_audio" | "audio_duplex" | "omni_duplex" | "duplex"} Kind
 *
 * @typedef {Object} RunningTask
 * @property {string} worker_id
 * @property {Kind} request_type
 * @property {string | null} session_id
 * @property {string} started_at
 * @property {number} elapsed_s
 * @property {number} estimated_remaining_s
 *
 * @typedef {Object} QueueItem
 * @property {string} ticket_id
 * @property {Kind} request_type
 * @property {string | null} session_id
 * @property {number} position
 * @property {number} estimated_wait_s
 * @property {number} wait_elapsed_s
 *
 * @typedef {{queue_length: number, max_queue_size: number, items: QueueItem[], running_tasks: RunningTask[]}} Queue
 *
 * @typedef {{session_id: string | null, request_type: Kind, started_at: string}} WorkerSession
 *
 * @typedef {Object} Worker
 * @property {string} worker_id
 * @property {number | null} gpu_id
 * @property {string} status
 * @property {number} total_requests
 * @property {number} avg_inference_time_ms
 * @property {string | null} last_heartbeat
 * @property {string | null} cached_hash
 * @property {number} slots
 * @property {number} free_slots
 * @property {boolean} is_draining
 * @property {string | null} error
 * @property {string | null} last_error
 * @property {string | null} last_error_at
 * @property {number | null} vram_used_mb
 * @property {number | null} vram_total_mb
 * @property {number} kv_cache_tokens
 * @property {number | null} uptime_s
 * @property {WorkerSession[]} sessions
 * @property {{name: string, kind: string, device?: string | null, dtype?: string | null} | null} model
 * @property {{stage: string, progress: number | null} | null} loading
 * @property {boolean} can_restart
 * @property {boolean} is_restarting
 *
 * @typedef {Object} LiveSession
 * @property {string} session_id "" for a conversation that a worker only remembers
 * @property {Kind | null} request_type
 * @property {string | null} worker_id
 * @property {string | null} phase
 * @property {string | null} last_active
 *
 * @typedef {import("../shared/status-source.js").ServiceStatus & {running_tasks: RunningTask[]}} Status
 * @typedef {{period_s: number, t: number[], series: Record<string, (number | null)[]>}} History
 * @typedef {{app_id: string, name: string, route: string, enabled: boolean}} AppState
 *
 * @typedef {Object} Recording
 * @property {string} id
 * @property {Kind | null} app_type
 * @property {string} created_at
 * @property {number | null} duration_s
 * @property {number} bytes
 * @property {boolean} has_comment
 * @property {boolean} has_upload
 * @property {boolean} is_running
 * @property {string | null} status
 * @property {string | null} problem
 *
 * @typedef {{total: number, total_bytes: number, recordings: Recording[]}} RecordingPage
 *
 * @typedef {Object} CleanupReport
 * @property {"ok" | "skipped"} status
 * @property {number} scanned
 * @property {number} live
 * @property {number} deleted
 * @property {number} remaining
 * @property {number} remaining_size_mb
 * @property {{session_id: string, reason: "expired" | "capacity" | "orphan", size_bytes: number}[]} sessions
 * @property {{session_id: string, message: string}[]} errors
 *
 * @typedef {{text: string, time: string | null, level: string | null}} LogLine
 * @typedef {{source: string, sources: string[], lines: LogLine[], cursor: string, has_more: boolean, was_turned_over: boolean}} LogPart
 *
 * @typedef {{id: string, name: string, duration_ms: number, created_at: string}} RefAudio
 * @typedef {{time: string, address: string, action: string, target: string, details: string, status: number}} AuditEntry
 * @typedef {Record<string, number | null>} EtaConfig
 * @typedef {Record<string, number | null> & {config: EtaConfig}} EtaStatus
 * @typedef {{needs_token: boolean, is_admin: boolean}} AdminState
 */

export {};
