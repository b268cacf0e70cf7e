/** Facts for administration, derived from the server's responses. Pure. */

/** @typedef {ReturnType<typeof overviewOf>} Overview */

/** The status, and sums over all workers. @param {Http.ServiceStatus} status @param {readonly Http.WorkerInfo[]} workers */
export function overviewOf(status, workers) {
  const known = workers.filter((worker) => worker.vram_used_mb !== null && worker.vram_total_mb !== null);
  const sum = (/** @type {(worker: Http.WorkerInfo) => number | null} */ of, list = workers) =>
    list.reduce((all, one) => all + (of(one) ?? 0), 0);
  return {
    ...status,
    broken: status.error_workers + status.offline_workers, // failed or unreachable
    places: sum(({ slots }) => slots), // slots of all workers
    freePlaces: sum(({ free_slots }) => free_slots),
    memoryUsedMb: known.length > 0 ? sum(({ vram_used_mb }) => vram_used_mb, known) : null, // if no worker reports it
    memoryTotalMb: known.length > 0 ? sum(({ vram_total_mb }) => vram_total_mb, known) : null,
  };
}

/** @typedef {ReturnType<typeof workerState>} WorkerState */

export function workerState(/** @type {Http.WorkerInfo} */ worker) {
  if (worker.is_restarting) return worker.sessions.length > 0 ? "restart_waits" : "restart_stops";
  if (worker.status === "loading") return worker.loading ? "loading" : "starting";
  if (worker.status === "error" || worker.status === "offline") return worker.status;
  if (worker.is_draining) return "draining";
  return worker.status === "idle" ? "idle" : "busy";
}

/** @type {Record<WorkerState, "good" | "caution" | "bad">} */ export const TONES = {
  restart_waits: "caution",
  restart_stops: "caution",
  starting: "caution",
  loading: "caution",
  error: "bad",
  offline: "bad",
  draining: "caution",
  busy: "good",
  idle: "good",
};

export function restartBlock(/** @type {Http.WorkerInfo} */ worker) {
  if (worker.is_restarting) return "under_way";
  if (worker.status === "offline") return "offline";
  return worker.can_restart ? null : "alone";
}

/** @typedef {ReturnType<typeof sessionRows>[number]} SessionRow */

/** All sessions except queued ones. @param {readonly Http.SessionInfo[]} live @param {Http.QueueStatus} queue @param {number} nowMs */
export function sessionRows(live, queue, nowMs) {
  const running = queue.running_tasks.map((task) => ({
    key: task.session_id ?? `${task.worker_id} ${task.started_at}`,
    sessionId: task.session_id, // null for requests without a session
    kind: task.request_type,
    workerId: task.worker_id,
    isServed: true, // by a worker; otherwise it is connected between two turns
    elapsedS: task.elapsed_s,
    remainingS: task.estimated_remaining_s,
    canStop: live.some(({ session_id: id }) => id === task.session_id), // its client is connected
  }));
  const known = new Set(running.map(({ sessionId }) => sessionId));
  const connected = live
    .filter(({ session_id: id, phase }) => id !== "" && phase !== "waiting" && !known.has(id))
    .map(({ session_id: id, request_type: kind, worker_id: workerId, last_active: active }) => {
      const elapsedS = active === null ? null : Math.max(0, (nowMs - Date.parse(active)) / 1_000);
      return { key: id, sessionId: id, kind, workerId, isServed: false, elapsedS, remainingS: null, canStop: true };
    });
  return [...running, ...connected];
}

/** Administrators' actions by the server's names. @type {Record<string, string>} */ const ACTIONS = {
  "POST /api/admin/login": "login",
  "POST /api/admin/logout": "logout",
  "PUT /api/admin/apps/{app_id}": "app",
  "PUT /api/admin/apps": "app",
  "PUT /api/admin/intake": "intake",
  "PUT /api/admin/workers/{worker_id}": "worker",
  "POST /api/admin/workers/{worker_id}/restart": "restart",
  "POST /api/admin/sessions/{session_id}/stop": "stop",
  "POST /api/admin/cleanup": "cleanup",
  "DELETE /api/queue/{ticket_id}": "cancel",
  "PUT /api/config/eta": "eta",
  "POST /api/assets/ref_audio": "voice_add",
  "DELETE /api/assets/ref_audio/{ref_id}": "voice_delete",
  "DELETE /api/sessions/{recording_id}": "recording_delete",
  "POST /api/streaming/stop": "stop_all",
};

/** @param {string} action @returns {string | null} null for unknown ones */
export const auditAction = (action) => ACTIONS[action] ?? null;

// The form of expected durations: fields, validation, changes.

/** @typedef {{name: string, kind: string, isOptional?: boolean, most?: number}} EtaField */

/** @type {readonly EtaField[]} */ export const ETA_FIELDS = Object.freeze([
  { name: "eta_chat_s", kind: "chat" },
  { name: "eta_streaming_s", kind: "streaming" },
  { name: "eta_half_duplex_s", kind: "half_duplex" },
  { name: "eta_audio_duplex_s", kind: "audio_duplex" },
  { name: "eta_omni_duplex_s", kind: "omni_duplex" },
  { name: "eta_duplex_s", kind: "duplex", isOptional: true },
  { name: "ema_alpha", kind: "alpha", most: 1 },
]);

/** @param {Http.EtaStatus} status @param {string} name of a field @returns {number | null} */
export function savedValue(status, name) {
  return name === "ema_alpha" ? status.ema_alpha : (status.config[/** @type {keyof Http.EtaConfig} */ (name)] ?? null);
}

/** Null if valid. @param {EtaField} field @param {string} text */
export function fieldProblem(field, text) {
  if (text.trim() === "") return field.isOptional ? null : "missing";
  const value = Number(text);
  if (!Number.isFinite(value) || value <= 0) return "not_positive";
  return field.most !== undefined && value > field.most ? "too_large" : null;
}

/** @param {Http.EtaStatus} status @param {Record<string, string>} texts valid texts by field */
export function changesOf(status, texts) {
  /** @type {Record<string, number | null>} */ const changes = {};
  for (const { name } of ETA_FIELDS) {
    const value = texts[name].trim() === "" ? null : Number(texts[name]);
    if (value !== savedValue(status, name)) changes[name] = value;
  }
  return changes;
}

// Log lines, up to a maximum; the oldest are dropped first.

/** @typedef {typeof SEVERITIES[number]} Severity */
/** @typedef {Http.LogLine & {id: number, severity: Severity}} KeptLine */
/** @typedef {{text: string, least: Severity}} LogFilter */

/** In ascending order. */
export const SEVERITIES = /** @type {const} */ (["debug", "info", "warning", "error"]);
/** @type {Record<string, Severity>} */ const SEVERITY_OF = {
  debug: "debug",
  warning: "warning",
  warn: "warning",
  error: "error",
  critical: "error",
  exception: "error",
  fatal: "error",
};
const OWN_LOOK = /\bpath=\/api\/admin\/logs\b.*\bstatus=200\b/; // requests for the log itself are not shown
const TROUBLE = /^(?:Traceback \(most recent call last\)|\w*(?:Error|Exception): )/;

export function severityOf(/** @type {Http.LogLine} */ { level, text }) {
  if (OWN_LOOK.test(text)) return "debug";
  if (level) return SEVERITY_OF[level.toLowerCase()] ?? "info";
  return TROUBLE.test(text) ? "error" : "info";
}

export class LogBuffer {
  /** @type {KeptLine[]} */ lines = [];
  #maxLines;
  #nextId = 0;

  constructor(/** @type {number} */ maxLines) {
    this.#maxLines = maxLines;
  }

  /** @param {readonly Http.LogLine[]} lines @returns {KeptLine[]} those that were kept */
  add(lines) {
    const fresh = lines.map((line) => ({ ...line, id: this.#nextId++, severity: severityOf(line) }));
    this.lines = [...this.lines, ...fresh].slice(-this.#maxLines);
    return fresh.slice(-this.#maxLines);
  }

  clear() {
    this.lines = [];
  }
}

export function isMatch(/** @type {KeptLine} */ line, /** @type {LogFilter} */ { text, least }) {
  if (SEVERITIES.indexOf(line.severity) < SEVERITIES.indexOf(least)) return false;
  const wanted = text.trim().toLowerCase();
  return wanted === "" || `${line.time ?? ""} ${line.level ?? ""} ${line.text}`.toLowerCase().includes(wanted);
}

// The link to administration that the server prints at start.

const TOKEN_MARK = "#token=";

/** @param {string} hash fragment of the page's address @returns {string} "" without a token */
export function linkedToken(hash) {
  const token = hash.startsWith(TOKEN_MARK) ? hash.slice(TOKEN_MARK.length) : "";
  try {
    return decodeURIComponent(token);
  } catch {
    return token; // it was not encoded
  }
}
