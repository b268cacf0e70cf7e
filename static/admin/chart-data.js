// @ts-check
/** Makes charts and a table of numbers out of the server's last hour. Pure. */

/** @typedef {(number | null)[]} Column */

/**
 * @typedef {Object} Line
 * @property {string} name of the server's series
 * @property {string} tone token of its colour
 * @property {boolean} isDashed distinguishable without colour
 * @property {"left" | "right"} side whose axis it has
 * @property {Column} values
 *
 * @typedef {"sessions" | "queue" | "units" | "memory"} ChartId
 * @typedef {{id: ChartId, times: number[], lines: Line[], isEmpty: boolean}} Chart
 *
 * @typedef {Object} Span a piece of the hour in figures; null where nothing is known
 * @property {number} startS Unix seconds
 * @property {number | null} sessions most at once
 * @property {number | null} queue most at once
 * @property {number | null} waitS longest
 * @property {number | null} p50Ms of the units: the middle of the points
 * @property {number | null} p99Ms the largest of the points
 * @property {number | null} memoryMb of all workers, the most
 */

const SESSIONS = "sessions.";
const OLDER_KIND = "sessions.duplex";
const MEMORY = "vram_used_mb.";
const GAP_PERIODS = 2.5; // further apart than this, points are not joined
const TONES = ["listen", "speak", "wait", "interrupt", "good"];

/** @type {Record<string, [tone: string, isDashed: boolean]>} */
const LOOKS = {
  "sessions.chat": ["idle", true],
  "sessions.streaming": ["wait", false],
  "sessions.half_duplex_audio": ["good", true],
  "sessions.audio_duplex": ["listen", false],
  "sessions.omni_duplex": ["speak", false],
  "sessions.duplex": ["interrupt", true],
  "queue.length": ["wait", false],
  "queue.oldest_wait_s": ["interrupt", true],
  "unit.p50_ms": ["listen", false],
  "unit.p99_ms": ["speak", true],
};

/** @param {Http.History} history @returns {Chart[]} */
export function chartsOf(history) {
  const names = Object.keys(history.series);
  const sessions = names.filter((name) => name.startsWith(SESSIONS) && (name !== OLDER_KIND || isUsed(history, name)));
  return [
    chart("sessions", history, sessions),
    chart("queue", history, ["queue.length", "queue.oldest_wait_s"]),
    chart("units", history, ["unit.p50_ms", "unit.p99_ms"]),
    chart(
      "memory",
      history,
      names.filter((name) => name.startsWith(MEMORY)),
    ),
  ];
}

/** @param {string} name of a series of memory @returns {string} its worker */
export function workerOf(name) {
  return name.slice(MEMORY.length);
}

/** @param {ChartId} id @param {Http.History} history @param {string[]} names @returns {Chart} */
function chart(id, history, names) {
  const { times, columns } = withGaps(
    history.t,
    names.map((name) => history.series[name] ?? []),
    history.period_s * GAP_PERIODS,
  );
  const lines = names.map((name, index) => ({ name, ...lookOf(name, index), values: columns[index] }));
  return { id, times, lines, isEmpty: !lines.some(({ values }) => values.some((value) => value !== null)) };
}

/** @param {string} name @param {number} index among its chart's lines @returns {Omit<Line, "name" | "values">} */
function lookOf(name, index) {
  const isRight = name === "queue.oldest_wait_s";
  const [tone, isDashed] = LOOKS[name] ?? [TONES[index % TONES.length], index >= TONES.length];
  return { tone, isDashed, side: isRight ? "right" : "left" };
}

/** @param {Http.History} history @param {string} name */
function isUsed(history, name) {
  return history.series[name].some((value) => (value ?? 0) > 0);
}

/**
 * Puts an empty point where the server did not look for a while, so that no line is drawn across.
 * @param {readonly number[]} times Unix seconds
 * @param {readonly Column[]} columns
 * @param {number} longestS between two points that are joined
 * @returns {{times: number[], columns: Column[]}}
 */
export function withGaps(times, columns, longestS) {
  /** @type {number[]} */
  const all = [];
  /** @type {Column[]} */
  const filled = columns.map(() => []);
  times.forEach((time, at) => {
    if (at > 0 && time - times[at - 1] > longestS) {
      all.push((time + times[at - 1]) / 2);
      filled.forEach((column) => column.push(null));
    }
    all.push(time);
    filled.forEach((column, index) => column.push(columns[index][at] ?? null));
  });
  return { times: all, columns: filled };
}

/** Sums the hour up in pieces, newest first. @param {Http.History} history @param {number} spanS @returns {Span[]} */
export function spansOf(history, spanS) {
  /** @type {Map<number, number[]>} */
  const places = new Map();
  history.t.forEach((time, at) => {
    const startS = Math.floor(time / spanS) * spanS;
    const known = places.get(startS);
    if (known) known.push(at);
    else places.set(startS, [at]);
  });
  const names = Object.keys(history.series);
  const sessions = names.filter((name) => name.startsWith(SESSIONS));
  const memory = names.filter((name) => name.startsWith(MEMORY));
  const pick = (/** @type {string} */ name, /** @type {number[]} */ at) =>
    known(at.map((one) => history.series[name]?.[one] ?? null));
  const total = (/** @type {string[]} */ all, /** @type {number[]} */ at) =>
    most(at.map((one) => sum(all.map((name) => history.series[name][one] ?? null))));
  return [...places]
    .sort(([a], [b]) => b - a)
    .map(([startS, at]) => ({
      startS,
      sessions: total(sessions, at),
      queue: most(pick("queue.length", at)),
      waitS: most(pick("queue.oldest_wait_s", at)),
      p50Ms: middle(pick("unit.p50_ms", at)),
      p99Ms: most(pick("unit.p99_ms", at)),
      memoryMb: total(memory, at),
    }));
}

/** @param {Column} values @returns {number[]} */
function known(values) {
  return values.filter((value) => value !== null);
}

/** @param {Column} values */
function sum(values) {
  const numbers = known(values);
  return numbers.length > 0 ? numbers.reduce((all, value) => all + value, 0) : null;
}

/** @param {Column} values */
function most(values) {
  const numbers = known(values);
  return numbers.length > 0 ? Math.max(...numbers) : null;
}

/** @param {number[]} values */
function middle(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length > 0 ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
}

/** @param {Column} values @returns {number | null} as it is now; null if that is not known */
export function latest(values) {
  return values.at(-1) ?? null;
}
