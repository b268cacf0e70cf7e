// @ts-check
/**
 * Which rows of a list go, which stay where they are and which are put somewhere, so that as few
 * as possible are touched: a row that is moved loses its focus. Pure.
 */

/**
 * @typedef {{key: string, before: string | null}} Placement `before` is the next row's key; null puts it last
 * @typedef {{removed: string[], placed: Placement[]}} RowPlan placed from the last to the first
 */

/**
 * @param {readonly string[]} shown keys as they stand now
 * @param {readonly string[]} wanted keys as they are to stand
 * @returns {RowPlan}
 */
export function planRows(shown, wanted) {
  const isWanted = new Set(wanted);
  const removed = shown.filter((key) => !isWanted.has(key));
  const place = new Map(wanted.map((key, index) => [key, index]));
  const kept = shown.filter((key) => isWanted.has(key));
  const staying = new Set(longestRise(kept.map((key) => place.get(key) ?? 0)).map((at) => kept[at]));
  /** @type {Placement[]} */
  const placed = [];
  for (let index = wanted.length - 1; index >= 0; index -= 1) {
    if (!staying.has(wanted[index])) placed.push({ key: wanted[index], before: wanted[index + 1] ?? null });
  }
  return { removed, placed };
}

/**
 * Returns the places of the longest rising run of values, not necessarily neighbours.
 *
 * @param {readonly number[]} values all different
 * @returns {number[]}
 */
function longestRise(values) {
  /** @type {number[]} */
  const ends = []; // ends[n]: place of the smallest value a rise of n + 1 can end with
  const before = values.map(() => -1);
  values.forEach((value, at) => {
    const length = ends.findIndex((end) => values[end] > value);
    const rank = length < 0 ? ends.length : length;
    before[at] = rank > 0 ? ends[rank - 1] : -1;
    ends[rank] = at;
  });
  const rise = [];
  for (let at = ends.at(-1) ?? -1; at >= 0; at = before[at]) rise.push(at);
  return rise.reverse();
}
