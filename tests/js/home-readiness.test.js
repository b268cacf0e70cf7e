import assert from "node:assert/strict";
import { test } from "node:test";

import { expectedWaitS, firstObstacle, readinessLines } from "../../static/home/readiness.js";

/** @import { BrowserFacts } from "../../static/home/readiness.js" */

/** @type {BrowserFacts} */
const BROWSER = {
  isSecure: true,
  isSupported: true,
  microphone: { permission: "granted", count: 2 },
  camera: { permission: "granted", count: 1 },
};

/** @param {Partial<Http.ModelFacts>} part @returns {Http.ModelFacts} */
function modelOf(part) {
  const facts = { parameters: null, device: "cpu", dtype: null, try_saying: [], is_demonstration: false };
  return { name: "Toy", kind: "unknown", ...facts, ...part };
}

const STATUS = /** @type {Http.ServiceStatus} */ ({
  total_workers: 1,
  idle_workers: 1,
  free_slots: 1,
  busy_workers: 0,
  loading_workers: 0,
  error_workers: 0,
  offline_workers: 0,
  queue_length: 0,
  max_queue_size: 10,
  is_intake_paused: false,
  model: modelOf({ name: "MiniCPM-o 4.5", kind: "full" }),
});

const clock = (/** @type {number} */ seconds) => `${seconds} s`;

/** @param {Partial<BrowserFacts>} [browser] @param {Partial<Http.ServiceStatus>} [status] @param {number | null} [waitS] */
function linesOf(browser = {}, status = {}, waitS = null) {
  const report = { status: { ...STATUS, ...status }, isReached: true };
  const lines = readinessLines({ ...BROWSER, ...browser }, report, waitS, clock);
  return { lines, of: (/** @type {string} */ id) => lines.find((line) => line.id === id) };
}

test("when everything works nothing stands in the way", () => {
  const { lines } = linesOf();
  assert.deepEqual(
    lines.map(({ state }) => state),
    Array(6).fill("good"),
  );
  assert.equal(firstObstacle(lines), null);
});

test("an insecure page locks the devices and says so first", () => {
  const { lines, of } = linesOf({ isSecure: false });
  assert.equal(of("secure")?.text.key, "problem.insecure_context.title");
  assert.equal(of("microphone")?.text.key, "home.device_locked");
  assert.equal(firstObstacle(lines)?.id, "secure");
});

test("a browser that cannot record has a sentence of its own", () => {
  assert.equal(linesOf({ isSupported: false }).of("secure")?.text.key, "problem.unsupported.title");
});

for (const { name, facts, key, state } of /** @type {const} */ ([
  { name: "refused", facts: { permission: "denied", count: 1 }, key: "problem.permission_denied.title", state: "bad" },
  { name: "not there", facts: { permission: "prompt", count: 0 }, key: "problem.no_microphone.title", state: "bad" },
  { name: "not asked for yet", facts: { permission: "prompt", count: 1 }, key: "home.microphone_found", state: "good" },
  {
    name: "of a browser that does not tell",
    facts: { permission: "unknown", count: 1 },
    key: "home.microphone_found",
    state: "good",
  },
  { name: "being looked for", facts: { permission: "unknown", count: null }, key: "home.asking", state: "asking" },
])) {
  test(`a microphone that is ${name}`, () => {
    const line = linesOf({ microphone: facts }).of("microphone");
    assert.equal(line?.text.key, key);
    assert.equal(line?.state, state);
  });
}

test("without a camera a conversation can still begin", () => {
  const { lines, of } = linesOf({ camera: { permission: "prompt", count: 0 } });
  assert.equal(of("camera")?.state, "caution");
  assert.equal(of("camera")?.text.key, "problem.camera_not_found.title");
  assert.equal(firstObstacle(lines), null);
});

test("a server that is not reached is what matters most", () => {
  const lines = readinessLines(BROWSER, { status: null, isReached: false }, null, clock);
  assert.equal(firstObstacle(lines)?.text.key, "problem.offline.title");
});

test("loading says how far it is, if the server says it", () => {
  const loading = { idle_workers: 0, free_slots: 0, loading_workers: 1 };
  assert.equal(linesOf({}, loading).of("worker")?.text.key, "problem.worker_loading.title");
  const line = linesOf({}, { ...loading, loading: { worker_id: "worker_0", stage: "weights", progress: 0.426 } }).of("worker");
  assert.deepEqual(line?.text, { key: "home.worker_loading_share", params: { percent: 42 } });
  assert.equal(line?.progress, 0.426);
});

test("workers that are all broken count as none", () => {
  const line = linesOf({}, { idle_workers: 0, free_slots: 0, error_workers: 1 }).of("worker");
  assert.equal(line?.text.key, "problem.no_worker.title");
  assert.equal(line?.state, "bad");
});

test("the line names its length and the wait", () => {
  const line = linesOf({}, { idle_workers: 0, free_slots: 0, busy_workers: 1, queue_length: 3 }, 90).of("queue");
  assert.deepEqual(line?.text, { key: "home.queue_length", n: 3 });
  assert.deepEqual(line?.next, { key: "home.queue_wait", params: { time: "90 s" } });
});

test("a full line and a closed door are told apart", () => {
  const busy = { idle_workers: 0, free_slots: 0, busy_workers: 1, queue_length: 10 };
  assert.equal(linesOf({}, busy).of("queue")?.text.key, "problem.queue_full.title");
  assert.equal(linesOf({}, { is_intake_paused: true }).of("queue")?.text.key, "home.paused");
});

test("a stand-in for the model is named and is no problem", () => {
  for (const kind of /** @type {const} */ (["tiny_random", "nano", "cascade", "fake"])) {
    const { lines, of } = linesOf({}, { model: modelOf({ kind, is_demonstration: true }) });
    assert.deepEqual(of("model")?.text, { key: "model_note.loaded", params: { name: modelOf({}).name } });
    assert.equal(firstObstacle(lines), null);
  }
  assert.equal(linesOf({}, { model: modelOf({}) }).of("model")?.next?.key, "model_note.unknown");
  assert.equal(linesOf({}, { model: null }).of("model")?.text.key, "model_note.none");
});

test("the expected wait is that of the last in line, else of the first to finish", () => {
  const busy = { ...STATUS, idle_workers: 0, free_slots: 0, busy_workers: 2, queue_length: 2 };
  assert.equal(expectedWaitS(STATUS, [], []), 0);
  assert.equal(expectedWaitS(busy, [{ estimated_wait_s: 5 }, { estimated_wait_s: 30 }], []), 30);
  const running = [{ estimated_remaining_s: 40 }, { estimated_remaining_s: 12 }, { estimated_remaining_s: null }];
  assert.equal(expectedWaitS({ ...busy, queue_length: 0 }, [], running), 12);
  assert.equal(expectedWaitS(busy, [], []), null);
});
