// @ts-check
/** The middle of some numbers. Pure. */

/**
 * @param {readonly number[]} values
 * @returns {number} NaN of none
 */
export function medianOf(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
