/** Texts of administration: kinds, sizes, times, states, errors. Pure. */

import { formatAgo, formatBytes, formatClock, formatNumber, hasText, MS_PER_S, problemText, t, tn } from "../shared/texts.js";
import { auditAction, workerState } from "./admin-facts.js";

/** @import { Overview } from "./admin-facts.js" */

const BYTES_PER_MB = 1024 * 1024;
const S_PER_HOUR = 3_600;
const S_PER_DAY = 86_400;
export const UNKNOWN = "–";

/** Kinds of conversation are named after their apps. @type {Record<Http.RequestType, string>} */ const KIND_KEYS = {
  chat: "admin.kind_chat",
  streaming: "app.turnbased.title",
  half_duplex_audio: "app.half_duplex_audio.title",
  audio_duplex: "app.audio_duplex.title",
  omni_duplex: "app.omni.title",
  duplex: "admin.kind_duplex",
};

export const kindName = (/** @type {Http.RequestType | null | undefined} */ kind) => (kind ? t(KIND_KEYS[kind]) : UNKNOWN);

export function memory(/** @type {number | null | undefined} */ megabytes) {
  return megabytes === null || megabytes === undefined ? UNKNOWN : formatBytes(megabytes * BYTES_PER_MB);
}

/** A duration: 3:07, or 5 h 12 min, or 3 d 4 h. @param {number | null | undefined} seconds */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < S_PER_HOUR) return formatClock(seconds);
  const hours = Math.floor((seconds % S_PER_DAY) / S_PER_HOUR);
  if (seconds >= S_PER_DAY) return t("admin.span_days", { days: Math.floor(seconds / S_PER_DAY), hours });
  return t("admin.span_hours", { hours, minutes: Math.floor((seconds % S_PER_HOUR) / 60) });
}

/** @param {string | null | undefined} time */
export const ago = (time) => (time ? formatAgo(Math.max(0, (Date.now() - Date.parse(time)) / MS_PER_S)) : UNKNOWN);

/** @param {number | null | undefined} ms */
export const milliseconds = (ms) => (ms === null || ms === undefined ? UNKNOWN : t("admin.ms", { n: formatNumber(ms) }));

/** @param {unknown} error @param {string} about subject of the failed operation: "worker", "voice" and so on */
export function failureText(error, about) {
  const problem = /** @type {{code?: string, message?: string, status?: number}} */ (error instanceof Error ? error : {});
  // A code may have two meanings: bad audio, and with HTTP 413 too much of it.
  const own = [`admin.fail_${about}_${problem.code}_${problem.status}`, `admin.fail_${about}_${problem.code ?? "internal"}`].find(
    hasText,
  );
  if (own) return t(own);
  const { title, nextStep, detail } = problemText(problem);
  return [title, detail, nextStep].filter(Boolean).join(" ");
}

// Overview and workers.

/**
 * @typedef {{labelKey: string, value: (facts: Overview) => string, note: (facts: Overview) => string,
 *   tone?: (facts: Overview) => string, share?: (facts: Overview) => number | null}} Figure
 */

/** @type {Record<string, Figure>} */ export const FIGURES = {
  conversations: {
    labelKey: "admin.now_sessions",
    value: ({ running_tasks: tasks }) => formatNumber(tasks.length),
    note: ({ freePlaces, places }) => t("admin.now_places", { free: formatNumber(freePlaces), all: formatNumber(places) }),
    share: ({ freePlaces, places }) => (places > 0 ? 1 - freePlaces / places : null),
  },
  workers: {
    labelKey: "admin.now_workers",
    value: ({ total_workers: n }) => formatNumber(n),
    note: (facts) => troubles(facts),
    tone: ({ broken, loading_workers: loading }) => (broken > 0 ? "bad" : loading > 0 ? "caution" : ""),
  },
  idle: {
    labelKey: "admin.now_idle",
    value: ({ idle_workers: n }) => formatNumber(n),
    note: () => t("admin.now_idle_note"),
    tone: ({ idle_workers: idle, freePlaces }) => (idle + freePlaces > 0 ? "good" : "caution"),
  },
  busy: { labelKey: "admin.now_busy", value: ({ busy_workers: n }) => formatNumber(n), note: () => t("admin.now_busy_note") },
  queue: {
    labelKey: "admin.now_queue",
    value: ({ queue_length: n }) => formatNumber(n),
    note: ({ max_queue_size: n }) => t("admin.now_queue_most", { n: formatNumber(n) }),
    tone: ({ queue_length: n }) => (n > 0 ? "caution" : ""),
  },
  memory: {
    labelKey: "admin.now_memory",
    value: ({ memoryUsedMb }) => memory(memoryUsedMb),
    note: ({ memoryTotalMb }) =>
      memoryTotalMb === null ? t("admin.no_gpu") : t("admin.of_memory", { total: memory(memoryTotalMb) }),
    share: ({ memoryUsedMb, memoryTotalMb }) => (memoryUsedMb === null || !memoryTotalMb ? null : memoryUsedMb / memoryTotalMb),
  },
};

function troubles(/** @type {Overview} */ { loading_workers: loading, broken }) {
  if (broken > 0) return t("admin.now_broken", { n: formatNumber(broken) });
  return loading > 0 ? t("admin.now_loading", { n: formatNumber(loading) }) : t("admin.now_well");
}

export function modelWords(/** @type {Http.WorkerInfo} */ { model, gpu_id: gpu }) {
  const where = gpu === null ? t("admin.on_cpu") : t("admin.on_gpu", { n: gpu });
  return model ? `${model.name} · ${where}` : where;
}

/** How far a start or restart is; null if there is none. @param {Http.WorkerInfo} worker */
export function startWords(worker) {
  const state = workerState(worker);
  if (state === "restart_waits") return tn("admin.restart_waits", worker.sessions.length);
  if (state === "restart_stops") return t("admin.restart_stops");
  if (state === "starting") return t("admin.starting");
  return state === "loading" ? t("admin.loading_stage", { stage: worker.loading?.stage ?? "" }) : null;
}

/** @type {[key: string, value: (worker: Http.WorkerInfo) => string][]} */ export const FACTS = [
  ["admin.places", ({ slots, free_slots: free }) => t("admin.places_of", { free: formatNumber(free), all: formatNumber(slots) })],
  ["admin.requests", ({ total_requests: n }) => formatNumber(n)],
  ["admin.mean_time", ({ total_requests: n, avg_inference_time_ms: ms }) => (n > 0 ? milliseconds(ms) : UNKNOWN)],
  ["admin.uptime", ({ uptime_s: s }) => span(s)],
  ["admin.kv_tokens", ({ kv_cache_tokens: n }) => formatNumber(n)],
  ["admin.cached", ({ cached_hash: hash }) => (hash ? `${hash.slice(0, 12)}…` : UNKNOWN)],
  ["admin.heard", ({ last_heartbeat: at }) => ago(at)],
];

// Expected durations, recordings, logs and audit.

export function hintOf(/** @type {string} */ kind, /** @type {Readonly<Record<string, unknown>>} */ status) {
  if (kind === "alpha") return t("admin.eta_alpha_hint");
  if (kind === "duplex") return t("admin.eta_duplex_hint");
  const samples = Number(status[`ema_${kind}_samples`] ?? 0);
  const mean = status[`ema_${kind}_s`] ?? null;
  return mean === null || samples === 0
    ? t("admin.eta_not_measured")
    : tn("admin.eta_measured", samples, { mean: formatNumber(Number(mean), 1) });
}

/** @param {{session_retention_days: number, max_storage_gb: number}} limits */
export function keptText({ session_retention_days: days, max_storage_gb: room }) {
  const rules = [];
  if (days > 0) rules.push(tn("admin.recordings_days", days));
  if (room > 0) rules.push(t("admin.recordings_room", { n: formatNumber(room) }));
  return rules.join(" ") || t("admin.recordings_for_ever");
}

/** @param {Http.ListedRecording} recording */
export function stateWords({ is_running: isRunning, status, problem, has_comment: hasComment, has_upload: hasUpload }) {
  const state = isRunning ? t("admin.rec_running") : status === "ready" ? t("admin.rec_ready") : t("admin.rec_unfinished");
  return [state, problem, hasComment && t("admin.rec_comment"), hasUpload && t("admin.rec_upload")].filter(Boolean).join(" · ");
}

/** @param {Http.CleanupReport} report */
export const sizeOf = ({ sessions }) => sessions.reduce((sum, { size_bytes: bytes }) => sum + bytes, 0);

/** @param {string} time as written in the log */
export function clock(time) {
  const read = new Date(time);
  if (Number.isNaN(read.getTime())) return time;
  return new Intl.DateTimeFormat(t("language.tag"), { timeStyle: "medium", hourCycle: "h23" }).format(read);
}

export function actionWords(/** @type {string} */ action) {
  const known = auditAction(action);
  return known ? t(`admin.did_${known}`) : action;
}
