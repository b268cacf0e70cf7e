/** Medians and event rates. Pure. */

/** @param {readonly number[]} values @returns {number} NaN without values */
export function medianOf(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// Measures the rate of events over the last few.

const KEPT = 12;
const MS_PER_S = 1_000;

/** @returns {{count: (nowMs: number) => {rate: number, count: number}}} `rate` per second; 0 until there are two events */
export function createRateCounter() {
  /** @type {number[]} */ let times = [];
  let total = 0;
  return {
    count(nowMs) {
      times = [...times.slice(1 - KEPT), nowMs];
      total += 1;
      const spanMs = nowMs - times[0];
      return { rate: spanMs > 0 ? ((times.length - 1) * MS_PER_S) / spanMs : 0, count: total };
    },
  };
}
