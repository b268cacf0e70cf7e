/** Formats numbers, times and sizes in the current language. Pure. */

import { getLang, t, tn } from "./texts.js";

const SECONDS_PER_MINUTE = 60;
const BYTES_PER_STEP = 1024;
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Cached: constructing a formatter is far slower than using it. @type {Map<string, Intl.NumberFormat>} */
const numberFormats = new Map();

/** @param {number} value @param {number} [maxDigits] fraction digits @param {number} [minDigits] */
export function formatNumber(value, maxDigits = 0, minDigits = maxDigits) {
  const key = `${getLang()} ${minDigits} ${maxDigits}`;
  const known = numberFormats.get(key);
  if (known) return known.format(value);
  const options = { minimumFractionDigits: minDigits, maximumFractionDigits: maxDigits };
  const made = new Intl.NumberFormat(getLang(), options);
  numberFormats.set(key, made);
  return made.format(value);
}

/** @param {number} bytes */
export function formatBytes(bytes) {
  const step = bytes < 1 ? 0 : Math.min(Math.floor(Math.log(bytes) / Math.log(BYTES_PER_STEP)), 4);
  return `${formatNumber(bytes / BYTES_PER_STEP ** step, step && 1, 0)} ${BYTE_UNITS[step]}`;
}

/** Minutes and seconds as on a clock: 3:07. @param {number} seconds */
export function formatClock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const rest = String(whole % SECONDS_PER_MINUTE).padStart(2, "0");
  return `${Math.floor(whole / SECONDS_PER_MINUTE)}:${rest}`;
}

/** @param {string | number | Date} time */
export function formatDateTime(time) {
  return new Intl.DateTimeFormat(getLang(), { dateStyle: "medium", timeStyle: "short" }).format(new Date(time));
}

/** How long ago something was: "3 minutes ago". @param {number} seconds */
export function formatAgo(seconds) {
  /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ const units = [
    ["day", 86_400],
    ["hour", 3_600],
    ["minute", SECONDS_PER_MINUTE],
    ["second", 1],
  ];
  const [unit, size] = units.find(([, length]) => seconds >= length) ?? units[3];
  const format = new Intl.RelativeTimeFormat(getLang(), { numeric: "auto" });
  return format.format(-Math.round(seconds / size), unit);
}

/** @param {{status: Http.ServiceStatus | null, isReached: boolean}} report @returns {{kind: "good" | "caution" | "bad", text: string}} */
export function describeHealth({ status, isReached }) {
  if (!isReached || !status) return { kind: "bad", text: t("health.offline") };
  if (status.is_intake_paused) return { kind: "caution", text: t("health.paused") };
  if (status.queue_length > 0) return { kind: "caution", text: tn("health.waiting", status.queue_length) };
  if (status.free_slots > 0) return { kind: "good", text: t("health.ready") };
  if (status.loading_workers > 0) return { kind: "caution", text: t("health.loading") };
  if (status.busy_workers > 0) return { kind: "caution", text: t("health.busy") };
  return { kind: "bad", text: t("health.no_worker") };
}
