/** Texts of the current language by key, with parameters and plural forms; formats of numbers, times and sizes. Pure. */

const CHANGED = "languagechange";

const changes = new EventTarget();
/** @typedef {{status: Http.ServiceStatus | null, isReached: boolean}} StatusReport */

/** @type {{lang: string, texts: Record<string, string>}} */ const current = { lang: "en", texts: {} };

export function setTexts(/** @type {string} */ lang, /** @type {Record<string, string>} */ texts) {
  Object.assign(current, { lang, texts });
}

/** Redraws everything that shows texts. */
export const notifyLangChange = () => changes.dispatchEvent(new Event(CHANGED));

/** @returns {string} code of the current language */
export const getLang = () => current.lang;

/** Calls a function on each language change; the returned function removes it. @param {() => void} listener @returns {() => void} */
export function onLangChange(listener) {
  changes.addEventListener(CHANGED, listener);
  return () => changes.removeEventListener(CHANGED, listener);
}

/**
 * Returns a text, or the key itself if it is missing, so that gaps are visible.
 * @param {string} key
 * @param {Record<string, string | number>} [params] for {name} in the text
 */
export const t = (key, params) => interpolate(current.texts[key] ?? key, params);

/**
 * Returns the plural form for a number: KEY.one, KEY.other and so on; {n} is the number.
 * @param {string} key
 * @param {number} n
 * @param {Record<string, string | number>} [params]
 */
export function tn(key, n, params) {
  const form = `${key}.${new Intl.PluralRules(current.lang).select(n)}`;
  return t(form in current.texts ? form : `${key}.other`, { n, ...params });
}

/** @param {{key: string, params?: Record<string, string | number>, n?: number}} phrase `n` selects the plural form */
export const phraseText = ({ key, params, n }) => (n === undefined ? t(key, params) : tn(key, n, params));

/** @param {string} key @returns {boolean} whether there is such a text */
export const hasText = (key) => key in current.texts;

// Choice of the language.

const CODE = /^[a-z]{2,3}$/;

/**
 * @param {readonly string[] | null} offered codes such as "en"; null: any valid code
 * @param {{query?: string | null, stored?: string | null, server?: string | null,
 *   browser?: readonly string[], fallback: string}} wishes strongest first, as named here
 */
export function pickLanguage(offered, { query, stored, server, browser = [], fallback }) {
  for (const wish of [query, stored, server, ...browser]) {
    const base = wish?.toLowerCase().split(/[-_]/)[0];
    if (base && (offered ? offered.includes(base) : CODE.test(base))) return base;
  }
  return fallback;
}

/** Unknown names are left as they are, so that mistakes are visible. @param {string} text @param {Record<string, string | number>} [params] */
export const interpolate = (text, params = {}) =>
  text.replace(/\{(\w+)\}/g, (whole, name) => (name in params ? String(params[name]) : whole));

// Texts of problems: title and next step.

const UNKNOWN = "internal";

/**
 * @param {string | {code?: string, message?: string}} problem a code, or an error that carries one
 * @returns {{code: string, title: string, nextStep: string, detail: string}} `detail` is the server's
 *   message, only where there is no text for the code
 */
export function problemText(problem) {
  const wanted = typeof problem === "string" ? problem : (problem.code ?? UNKNOWN);
  const code = hasText(`problem.${wanted}.title`) ? wanted : UNKNOWN;
  const message = typeof problem === "string" ? "" : (problem.message ?? "");
  return {
    code: wanted,
    title: t(`problem.${code}.title`),
    nextStep: t(`problem.${code}.next`),
    detail: code === wanted && code !== UNKNOWN ? "" : message,
  };
}

/** Problem and next step in one line. @param {unknown} problem an error, or its code */
export function problemWords(problem) {
  const { title, nextStep } = problemText(/** @type {string | {code?: string}} */ (problem));
  return `${title} ${nextStep}`;
}

export class CodedError extends Error {
  /** @param {string} code of a text `problem.CODE` @param {unknown} [cause] the browser's error @param {string} [message] */
  constructor(code, cause, message = code) {
    super(message, { cause });
    this.code = code;
  }
}

/** @param {unknown} error @returns {string} the browser's own message */
export const reasonOf = (error) => (error instanceof Error && error.cause instanceof Error ? error.cause.message : "");

/** @param {unknown} error @param {string} [fallback] */
export function codeOf(error, fallback = "unsupported") {
  return error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : fallback;
}

export const MS_PER_S = 1_000;
export const S_PER_MINUTE = 60;
const BYTES_PER_STEP = 1024;
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/**
 * Formats a number as English and Chinese write it: 1,234.5. `Intl.NumberFormat` loads its data when it is first used, which takes
 * 50 ms on a desktop and 200 ms on a telephone, before the first paint.
 * @param {number} value
 * @param {number} [maxDigits] fraction digits
 * @param {number} [minDigits]
 */
export function formatNumber(value, maxDigits = 0, minDigits = maxDigits) {
  const [whole, fraction = ""] = value.toFixed(maxDigits).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  const shown = fraction.replace(/0+$/, "").padEnd(minDigits, "0");
  return shown ? `${grouped}.${shown}` : grouped;
}

export function formatBytes(/** @type {number} */ bytes) {
  const step = bytes < 1 ? 0 : Math.min(Math.floor(Math.log(bytes) / Math.log(BYTES_PER_STEP)), 4);
  return `${formatNumber(bytes / BYTES_PER_STEP ** step, step && 1, 0)} ${BYTE_UNITS[step]}`;
}

/** Minutes and seconds as on a clock: 3:07. @param {number} seconds */
export function formatClock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const rest = String(whole % S_PER_MINUTE).padStart(2, "0");
  return `${Math.floor(whole / S_PER_MINUTE)}:${rest}`;
}

/** Kept, since constructing one takes far longer than using it. @type {Map<string, Intl.DateTimeFormat>} */
const dateFormats = new Map();

export function formatDateTime(/** @type {string | number | Date} */ time) {
  const lang = getLang();
  const format = dateFormats.get(lang) ?? new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "short" });
  dateFormats.set(lang, format);
  return format.format(new Date(time));
}

/** How long ago something was: "3 minutes ago". @param {number} seconds */
export function formatAgo(seconds) {
  /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ const units = [
    ["day", 86_400],
    ["hour", 3_600],
    ["minute", S_PER_MINUTE],
    ["second", 1],
  ];
  const [unit, size] = units.find(([, length]) => seconds >= length) ?? units[3];
  const format = new Intl.RelativeTimeFormat(getLang(), { numeric: "auto" });
  return format.format(-Math.round(seconds / size), unit);
}

export function describeHealth(/** @type {StatusReport} */ { status, isReached }) {
  if (!isReached || !status) return { kind: "bad", text: t("health.offline") };
  if (status.is_intake_paused) return { kind: "caution", text: t("health.paused") };
  if (status.queue_length > 0) return { kind: "caution", text: tn("health.waiting", status.queue_length) };
  if (status.free_slots > 0) return { kind: "good", text: t("health.ready") };
  if (status.loading_workers > 0) return { kind: "caution", text: t("health.loading") };
  if (status.busy_workers > 0) return { kind: "caution", text: t("health.busy") };
  return { kind: "bad", text: t("health.no_worker") };
}

/** Why no conversation can start; null if one can. @param {StatusReport} report @returns {string | null} code of a text `problem.CODE` */
export function problemOfStatus({ status, isReached }) {
  if (!isReached || !status) return "offline";
  if (status.idle_workers + status.busy_workers > 0) return null;
  return status.loading_workers > 0 ? "worker_loading" : "no_worker";
}
