// @ts-check
/**
 * A moment of a recording in an address: `?t=12.3`. Pure.
 */

const NAME = "t";
const DIGITS = 1;
const CLOCK = /^(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:\.\d+)?)$/;
const SECONDS_PER_MINUTE = 60;

/**
 * @param {string} search of an address
 * @returns {number | null} s; null if it names no moment
 */
export function readMoment(search) {
  const value = new URLSearchParams(search).get(NAME)?.trim() ?? "";
  const clock = CLOCK.exec(value);
  if (clock) {
    const [hours, minutes, seconds] = [clock[1] ?? 0, clock[2], clock[3]].map(Number);
    return (hours * SECONDS_PER_MINUTE + minutes) * SECONDS_PER_MINUTE + seconds;
  }
  const atS = value === "" ? Number.NaN : Number(value.replace(/s$/, ""));
  return Number.isFinite(atS) && atS >= 0 ? atS : null;
}

/**
 * Returns an address that names a moment; the beginning needs no name. Everything else in it stays.
 *
 * @param {string} href
 * @param {number} atS
 */
export function withMoment(href, atS) {
  const url = new URL(href);
  const text = atS.toFixed(DIGITS).replace(/\.0$/, "");
  if (Number(text) > 0) url.searchParams.set(NAME, text);
  else url.searchParams.delete(NAME);
  return url.href;
}
