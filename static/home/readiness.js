// @ts-check
/** What the home page works out: is everything ready, and which app to begin with. Pure. */

/** @import { App, StatusReport } from "../shared/page.js" */

/**
 * @typedef {"asking" | "good" | "caution" | "bad"} LineState
 * @typedef {{key: string, params?: Record<string, string | number>, n?: number}} Phrase
 *   `n` asks for the form of the text that fits a number
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
 * @property {boolean} isSecure the page may use microphone and camera
 * @property {boolean} isSupported the browser can use them at all
 * @property {DeviceFacts} microphone
 * @property {DeviceFacts} camera
 * @typedef {StatusReport} Report
 */

const PERCENT = 100;

/** @param {string} code of problem.* @returns {{text: Phrase, next: Phrase}} */
function problem(code) {
  return { text: { key: `problem.${code}.title` }, next: { key: `problem.${code}.next` } };
}

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
  const worst = id === "camera" ? "caution" : "bad"; // without a camera one can still talk
  if (!facts.isSecure || !facts.isSupported) {
    return { id, state: worst, text: { key: "home.device_locked" } };
  }
  if (count === null) return { id, state: "asking", text: { key: "home.asking" } };
  if (permission === "denied") return { id, state: worst, ...problem(`${prefix}permission_denied`) };
  if (count === 0) return { id, state: worst, ...problem(id === "camera" ? "camera_not_found" : "no_microphone") };
  if (permission === "granted") return { id, state: "good", text: { key: `home.${id}_allowed`, n: count } };
  return { id, state: "good", text: { key: `home.${id}_found` }, next: { key: "home.will_ask" } };
}

/** @param {Report | null} report @returns {Line} */
function workerLine(report) {
  if (report === null) return { id: "worker", state: "asking", text: { key: "home.asking" } };
  const { status, isReached } = report;
  if (!isReached || status === null) return { id: "worker", state: "bad", ...problem("offline") };
  const { free_slots: free, busy_workers: busy, loading_workers: loading } = status;
  if (free > 0) return { id: "worker", state: "good", text: { key: "home.worker_free", n: free } };
  if (busy > 0) {
    return { id: "worker", state: "caution", text: { key: "home.worker_busy" }, next: { key: "home.worker_busy_next" } };
  }
  if (loading === 0) return { id: "worker", state: "bad", ...problem("no_worker") };
  const share = status.loading?.progress;
  const known = typeof share === "number" ? { progress: share } : {};
  const text =
    known.progress === undefined
      ? { key: "problem.worker_loading.title" }
      : { key: "home.worker_loading_share", params: { percent: Math.floor(known.progress * PERCENT) } };
  return { id: "worker", state: "caution", text, next: { key: "problem.worker_loading.next" }, ...known };
}

/** @param {Report | null} report @param {number | null} waitS @param {(seconds: number) => string} clock @returns {Line} */
function queueLine(report, waitS, clock) {
  if (report === null) return { id: "queue", state: "asking", text: { key: "home.asking" } };
  const { status, isReached } = report;
  if (!isReached || status === null) return { id: "queue", state: "bad", text: { key: "home.queue_unknown" } };
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

/** @param {Report | null} report @returns {Line} */
function modelLine(report) {
  if (report === null) return { id: "model", state: "asking", text: { key: "home.asking" } };
  const model = report.status?.model;
  if (!model) return { id: "model", state: "caution", text: { key: "home.model_none" } };
  const params = { name: model.name };
  if (model.kind === "unknown") {
    const next = { key: "home.model_unknown_next" };
    return { id: "model", state: "caution", text: { key: "home.model_unknown", params }, next };
  }
  if (!model.is_demonstration) return { id: "model", state: "good", text: { key: "home.model_full", params } };
  // What to do about it stands in the note above the cards.
  return { id: "model", state: "caution", text: { key: `home.model_${model.kind}`, params } };
}

/**
 * @param {BrowserFacts} facts
 * @param {Report | null} report null until the server was asked
 * @param {number | null} waitS
 * @param {(seconds: number) => string} clock writes a duration
 */
export function readinessLines(facts, report, waitS, clock) {
  return [
    secureLine(facts),
    deviceLine("microphone", facts),
    deviceLine("camera", facts),
    workerLine(report),
    queueLine(report, waitS, clock),
    modelLine(report),
  ];
}

/** What stops a conversation; the model and the camera do not. @type {ReadonlySet<LineId>} */
const DECISIVE = new Set(["secure", "microphone", "worker", "queue"]);

/** The one line worth a visitor's attention, or null if a conversation can begin. @param {Line[]} lines @returns {Line | null} */
export function firstObstacle(lines) {
  const decisive = lines.filter(({ id }) => DECISIVE.has(id));
  const worst = ["bad", "caution", "asking"].find((wanted) => decisive.some(({ state }) => state === wanted));
  return decisive.find(({ state }) => state === worst) ?? null;
}

/**
 * How long a newcomer would wait, or null if it is not known.
 * @param {Http.ServiceStatus} status
 * @param {{estimated_wait_s: number}[]} waiting those in line, first to last
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

// What is offered on the home page, and which way to talk is offered first.

/**
 * @typedef {Object} AppLook
 * @property {string} icon
 * @property {readonly string[]} needs devices, as home.need_* names them
 * @property {string} startKey what the button says that begins it
 */

/** @type {Readonly<Record<string, AppLook>>} */
const LOOKS = Object.freeze({
  audio_duplex: { icon: "wave", needs: ["microphone", "headphones"], startKey: "home.start_talking" },
  omni: { icon: "camera", needs: ["microphone", "camera"], startKey: "home.start_video" },
  half_duplex_audio: { icon: "turns", needs: ["microphone"], startKey: "home.start_talking" },
  turnbased: { icon: "chat", needs: ["nothing"], startKey: "home.start_chat" },
});
const UNKNOWN_LOOK = Object.freeze({ icon: "sparkle", needs: [], startKey: "home.start_other" });

/** The order in which apps are offered; one we do not know comes last. */
const ORDER = Object.keys(LOOKS);
/** First what is a conversation without any further device. */
const PRIMARY = ["audio_duplex", "half_duplex_audio", "omni", "turnbased"];

/** @param {string} appId @returns {AppLook} */
export function appLook(appId) {
  return LOOKS[appId] ?? UNKNOWN_LOOK;
}

/** @param {string} appId */
export function isKnownApp(appId) {
  return appId in LOOKS;
}

/** @param {string} appId */
function rank(appId) {
  const place = ORDER.indexOf(appId);
  return place < 0 ? ORDER.length : place;
}

/** @param {readonly App[]} apps @returns {App[]} */
export function inOrder(apps) {
  return [...apps].sort((one, other) => rank(one.app_id) - rank(other.app_id));
}

/** @param {readonly App[]} apps those that are switched on @returns {{primary: App | null, secondary: App[]}} */
export function chooseStart(apps) {
  const byId = new Map(apps.map((app) => [app.app_id, app]));
  const first = PRIMARY.find((id) => byId.has(id));
  const primary = (first && byId.get(first)) || apps[0] || null;
  const secondary = ["omni", "turnbased"].flatMap((id) => byId.get(id) ?? []).filter((app) => app !== primary);
  return { primary, secondary };
}
