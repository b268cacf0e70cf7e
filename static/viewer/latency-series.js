// @ts-check
/**
 * The columns of the latency chart. Pure.
 */

/** @typedef {import("./unit-plan.js").Plan} Plan */

/**
 * @param {Plan} plan
 * @returns {[number[], (number | null)[], (number | null)[], (number | null)[], (number | null)[]]}
 *   time, listened, spoke, too late (each in ms, null where it does not apply), and where a gap was heard
 */
export function latencySeries({ units }) {
  const wall = (/** @type {boolean} */ fits, /** @type {number | null} */ wallMs) => (fits ? wallMs : null);
  return [
    units.map(({ startS }) => startS),
    units.map(({ mode, isLate, wallMs }) => wall(mode === "listen" && !isLate, wallMs)),
    units.map(({ mode, isLate, wallMs }) => wall(mode === "speak" && !isLate, wallMs)),
    units.map(({ isLate, wallMs }) => wall(isLate, wallMs)),
    units.map(({ gapMs, wallMs }) => wall(gapMs > 0, wallMs)),
  ];
}

/**
 * What can be said of all units together.
 *
 * @param {Plan} plan
 */
export function latencyFigures({ units }) {
  const walls = units.flatMap(({ wallMs }) => (wallMs === null ? [] : [wallMs])).sort((a, b) => a - b);
  const at = (/** @type {number} */ share) => walls[Math.min(walls.length - 1, Math.floor(share * walls.length))] ?? null;
  return {
    count: units.length,
    spokeCount: units.filter(({ mode }) => mode === "speak").length,
    p50Ms: at(0.5),
    p99Ms: at(0.99),
    lateCount: units.filter(({ isLate }) => isLate).length,
    gapCount: units.filter(({ gapMs }) => gapMs > 0).length,
    gapMs: units.reduce((sum, { gapMs }) => sum + gapMs, 0),
  };
}
