/** Readiness of browser, devices and server for a conversation. Pure. */

/** @import { StatusReport } from "../shared/texts.js" */

/**
 * @typedef {"asking" | "good" | "caution" | "bad"} LineState
 * @typedef {{key: string, params?: Record<string, string | number>, n?: number}} Phrase
 *   `n` selects the plural form
 * @typedef {"secure" | "microphone" | "camera" | "worker" | "queue" | "model"} LineId
 *
 * @typedef {Object} Line
 * @property {LineId} id
 * @property {LineState} state
 * @property {Phrase} text
 * @property {Phrase} [next] what to do about it
 * @property {number} [progress] 0 to 1
 *
 * @typedef {"granted" | "prompt" | "denied" | "unknown"} Permission
 * @typedef {{permission: Permission, count: number | null}} DeviceFacts `count` null until it is known
 *
 * @typedef {Object} BrowserFacts
 * @property {boolean} isSecure the page is in a secure context
 * @property {boolean} isSupported the browser supports microphone capture
 * @property {DeviceFacts} microphone
 * @property {DeviceFacts} camera
 */

const PERCENT = 100;

/** @param {string} code of problem.* @returns {{text: Phrase, next: Phrase}} */
export const problem = (code) => ({ text: { key: `problem.${code}.title` }, next: { key: `problem.${code}.next` } });

/** @param {LineId} id @returns {Line} */
const asking = (id) => ({ id, state: "asking", text: { key: "home.asking" } });

/** @param {BrowserFacts} facts @returns {Line} */
function secureLine({ isSecure, isSupported }) {
  if (!isSecure) return { id: "secure", state: "bad", ...problem("insecure_context") };
  if (!isSupported) return { id: "secure", state: "bad", ...problem("unsupported") };
  return { id: "secure", state: "good", text: { key: "home.secure_good" } };
}

/** @param {"microphone" | "camera"} id @param {BrowserFacts} facts @returns {Line} */
function deviceLine(id, facts) {
  const { permission, count } = facts[id];
  const prefix = id === "camera" ? "camera_" : "";
  const worst = id === "camera" ? "caution" : "bad"; // voice works without a camera
  if (!facts.isSecure || !facts.isSupported) {
    return { id, state: worst, text: { key: "home.device_locked" } };
  }
  if (count === null) return asking(id);
  if (permission === "denied") return { id, state: worst, ...problem(`${prefix}permission_denied`) };
  if (count === 0) return { id, state: worst, ...problem(id === "camera" ? "camera_not_found" : "no_microphone") };
  if (permission === "granted") return { id, state: "good", text: { key: `home.${id}_allowed`, n: count } };
  return { id, state: "good", text: { key: `home.${id}_found` }, next: { key: "home.will_ask" } };
}

/** @param {Http.ServiceStatus | null} status @returns {Line} */
function workerLine(status) {
  if (status === null) return { id: "worker", state: "bad", ...problem("offline") };
  const { free_slots: free, busy_workers: busy, loading_workers: loading } = status;
  if (free > 0) return { id: "worker", state: "good", text: { key: "home.worker_free", n: free } };
  if (busy > 0) {
    return { id: "worker", state: "caution", text: { key: "home.worker_busy" }, next: { key: "home.worker_busy_next" } };
  }
  if (loading === 0) return { id: "worker", state: "bad", ...problem("no_worker") };
  /** @type {Line} */ const line = { id: "worker", state: "caution", ...problem("worker_loading") };
  const progress = status.loading?.progress ?? null;
  if (progress === null) return line;
  const params = { percent: Math.floor(progress * PERCENT) };
  return { ...line, text: { key: "home.worker_loading_share", params }, progress };
}

/** @param {Http.ServiceStatus | null} status @param {number | null} waitS @param {(seconds: number) => string} clock @returns {Line} */
function queueLine(status, waitS, clock) {
  if (status === null) return { id: "queue", state: "bad", text: { key: "home.queue_unknown" } };
  if (status.is_intake_paused) {
    return { id: "queue", state: "caution", text: { key: "home.paused" }, next: { key: "home.paused_next" } };
  }
  const { queue_length: length, max_queue_size: most } = status;
  if (most > 0 && length >= most) return { id: "queue", state: "bad", ...problem("queue_full") };
  const wait = waitS === null ? {} : { next: { key: "home.queue_wait", params: { time: clock(waitS) } } };
  if (length > 0) return { id: "queue", state: "caution", text: { key: "home.queue_length", n: length }, ...wait };
  if (status.free_slots === 0 && status.busy_workers > 0) {
    return { id: "queue", state: "caution", text: { key: "home.queue_next" }, ...wait };
  }
  return { id: "queue", state: "good", text: { key: "home.queue_empty" } };
}

/** @param {Http.ServiceStatus | null} status @returns {Line} */
function modelLine(status) {
  const model = status?.model;
  if (!model) return { id: "model", state: "caution", text: { key: "model_note.none" } };
  const text = { key: "model_note.loaded", params: { name: model.name } };
  if (model.kind === "unknown") return { id: "model", state: "caution", text, next: { key: "model_note.unknown" } };
  // The note above describes the abilities of a demonstration model.
  return { id: "model", state: model.is_demonstration ? "caution" : "good", text };
}

/**
 * @param {BrowserFacts} facts
 * @param {StatusReport | null} report null until the first report
 * @param {number | null} waitS
 * @param {(seconds: number) => string} clock formats a duration
 */
export function readinessLines(facts, report, waitS, clock) {
  const ofBrowser = [secureLine(facts), deviceLine("microphone", facts), deviceLine("camera", facts)];
  if (report === null) return [...ofBrowser, asking("worker"), asking("queue"), asking("model")];
  const { status } = report;
  return [...ofBrowser, workerLine(status), queueLine(status, waitS, clock), modelLine(status)];
}

/** Lines that prevent a conversation; model and camera do not. @type {ReadonlySet<LineId>} */
const DECISIVE = new Set(["secure", "microphone", "worker", "queue"]);

/** The most severe obstacle, or null if a conversation can start. @param {Line[]} lines @returns {Line | null} */
export function firstObstacle(lines) {
  const decisive = lines.filter(({ id }) => DECISIVE.has(id));
  const worst = ["bad", "caution", "asking"].find((wanted) => decisive.some(({ state }) => state === wanted));
  return decisive.find(({ state }) => state === worst) ?? null;
}

/**
 * Estimated wait of a new conversation; null if unknown.
 * @param {Http.ServiceStatus} status
 * @param {{estimated_wait_s: number}[]} waiting queued tickets, first to last
 * @param {{estimated_remaining_s?: number | null}[]} running
 * @returns {number | null} seconds
 */
export function expectedWaitS(status, waiting, running) {
  if (status.free_slots > 0 && status.queue_length === 0) return 0;
  const last = waiting.at(-1);
  if (last) return last.estimated_wait_s;
  const rests = running.map((task) => task.estimated_remaining_s).filter((rest) => typeof rest === "number");
  return rests.length > 0 ? Math.min(...rests) : null;
}
