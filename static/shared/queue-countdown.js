// @ts-check
/**
 * The wait as a person sees it: it never jumps up without a cause they can see. Pure, and a timer.
 *
 * Between and after the server's updates the shown seconds only fall; they may rise when the
 * position changed. Below zero is overtime, counted on.
 */

/** What the server last said.
 * @typedef {Object} QueueReport
 * @property {number} etaS Estimated wait, s.
 * @property {number} position 1 is next.
 * @property {number} queueLength
 */

/** What to show.
 * @typedef {Object} CountdownView
 * @property {number} shownS Whole seconds left; 0 in overtime.
 * @property {boolean} isOvertime It takes longer than was said.
 * @property {number} overtimeS Whole seconds since it should have been over.
 * @property {number} position
 * @property {number} queueLength
 */

/** @typedef {Object} CountdownState
 * @property {number} endsAtMs When the shown value reaches zero.
 * @property {number} position
 * @property {number} queueLength
 */

/** @typedef {Object} QueueCountdown
 * @property {(report: QueueReport) => void} update
 * @property {() => void} stop Harmless when it does not run; `update` starts it again.
 * @property {() => CountdownView | null} view
 */

const TICK_MS = 1_000;
const MS_PER_S = 1_000;

/**
 * Take in what the server said.
 * @param {CountdownState | null} before
 * @param {QueueReport} report
 * @param {number} nowMs
 * @returns {CountdownState}
 */
export function countdownAfter(before, report, nowMs) {
  const { position, queueLength } = report;
  const askedMs = nowMs + Math.max(0, report.etaS) * MS_PER_S;
  const mayRise = before === null || before.position !== position;
  const endsAtMs = mayRise ? askedMs : Math.min(before.endsAtMs, askedMs);
  return { endsAtMs, position, queueLength };
}

/**
 * What to show at a moment.
 * @param {CountdownState} state
 * @param {number} nowMs
 * @returns {CountdownView}
 */
export function countdownView(state, nowMs) {
  const leftMs = state.endsAtMs - nowMs;
  const { position, queueLength } = state;
  return {
    shownS: Math.max(0, Math.ceil(leftMs / MS_PER_S)),
    isOvertime: leftMs < 0,
    overtimeS: Math.max(0, Math.floor(-leftMs / MS_PER_S)),
    position,
    queueLength,
  };
}

/**
 * A countdown that calls back once a second, and at each update.
 * @param {(view: CountdownView) => void} onRender
 * @param {() => number} [nowMs] A steady clock.
 * @returns {QueueCountdown}
 */
export function createQueueCountdown(onRender, nowMs = () => performance.now()) {
  /** @type {CountdownState | null} */
  let state = null;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let timer;

  function render() {
    if (state) onRender(countdownView(state, nowMs()));
  }

  return {
    update(report) {
      state = countdownAfter(state, report, nowMs());
      timer ??= setInterval(render, TICK_MS);
      render();
    },
    stop() {
      clearInterval(timer);
      timer = undefined;
      state = null;
    },
    view: () => (state ? countdownView(state, nowMs()) : null),
  };
}
