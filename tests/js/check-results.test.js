import assert from "node:assert/strict";
import { test } from "node:test";

import {
  NEEDED,
  Results,
  browserAbilities,
  browserResult,
  echoResult,
  microphoneResult,
  problemResult,
  reportText,
  serverResult,
  verdictOf,
} from "../../static/check/results.js";
import { createRateCounter } from "../../static/shared/async.js";

function allGood() {
  const results = new Results();
  for (const id of NEEDED) results.set(id, { state: "good" });
  return results;
}

test("at first everything is still to do, in the order of the page", () => {
  assert.deepEqual(verdictOf(new Results()), { kind: "pending", done: 0, total: 4, first: "browser" });
});

test("one is ready without echo and camera", () => {
  assert.deepEqual(verdictOf(allGood()), { kind: "good", done: 4, total: 4, first: null });
});

test("what cannot be done without decides, even before the rest is done", () => {
  const results = new Results();
  results.set("microphone", problemResult("permission_denied"));
  const verdict = verdictOf(results);
  assert.equal(verdict.kind, "bad");
  assert.equal(verdict.first, "microphone");
});

test("an echo or a missing camera only makes it worse", () => {
  const results = allGood();
  results.set("camera", problemResult("camera_not_found", { state: "bad" }));
  assert.equal(verdictOf(results).kind, "caution");
  assert.equal(verdictOf(results).first, "camera");
});

test("a result that runs is not done", () => {
  const results = allGood();
  results.set("microphone", { state: "running" });
  assert.deepEqual(verdictOf(results), { kind: "pending", done: 3, total: 4, first: "microphone" });
});

test("a check whose device is closed early is not done, and a finding stays", () => {
  const results = new Results();
  results.set("camera", { state: "running", text: { key: "check.camera_opening" } });
  results.set("microphone", { state: "good" });
  for (const id of /** @type {const} */ (["camera", "microphone"])) results.leave(id);
  assert.deepEqual([results.get("camera"), results.get("microphone")], [{ state: "pending" }, { state: "good" }]);
});

test("whoever listens hears of a new result", () => {
  const results = new Results();
  let heard = 0;
  results.addEventListener("change", () => (heard += 1));
  results.set("echo", { state: "good" });
  assert.equal(heard, 1);
});

const TRIPS = { medianMs: 12.4, worstMs: 30, failed: 0 };
/** @param {Partial<Http.ServiceStatus>} part */
const report = (part) => ({
  isReached: true,
  status: /** @type {Http.ServiceStatus} */ ({
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
    ...part,
  }),
});

test("a near server is fine", () => {
  const result = serverResult(TRIPS, 20.2, report({}));
  assert.equal(result.state, "good");
  assert.deepEqual(result.facts, { median_ms: 12, worst_ms: 30, failed: 0, socket_ms: 20 });
});

test("each trouble on the way has its own sentence", () => {
  const key = (/** @type {Parameters<typeof serverResult>} */ ...given) => serverResult(...given).text?.key;
  assert.equal(key({ medianMs: Number.NaN, worstMs: Number.NaN, failed: 10 }, null, null), "problem.offline.title");
  assert.equal(key(TRIPS, null, report({})), "check.socket_blocked");
  assert.equal(key({ ...TRIPS, medianMs: 300 }, 20, report({})), "check.server_far");
  assert.equal(key({ ...TRIPS, worstMs: 900 }, 20, report({})), "check.server_uneven");
  assert.equal(key({ ...TRIPS, failed: 2 }, 20, report({})), "check.server_lossy");
  assert.equal(key(TRIPS, 20, report({ idle_workers: 0, free_slots: 0, loading_workers: 1 })), "problem.worker_loading.title");
  assert.equal(key(TRIPS, 20, report({ idle_workers: 0, free_slots: 0, error_workers: 1 })), "problem.no_worker.title");
});

/** A window that has everything. */
function fullScope() {
  class FullContext {
    setSinkId() {}
  }
  return {
    AudioWorkletNode: class {},
    WebSocket: class {},
    WebAssembly: {},
    MediaRecorder: class {},
    AudioContext: FullContext,
    isSecureContext: true,
    navigator: { mediaDevices: { getUserMedia() {} }, wakeLock: {} },
  };
}

/** @param {object} scope */
const judged = (scope) => browserResult(browserAbilities(/** @type {typeof globalThis} */ (scope)));

test("a browser with everything is fine", () => {
  assert.equal(judged(fullScope()).state, "good");
});

test("an insecure page, an old browser and a lack of extras are told apart", () => {
  const { AudioWorkletNode: _one, ...old } = fullScope();
  const { MediaRecorder: _other, ...plain } = fullScope();
  assert.equal(judged({ ...fullScope(), isSecureContext: false }).text?.key, "problem.insecure_context.title");
  assert.equal(judged(old).text?.key, "problem.unsupported.title");
  assert.equal(judged(plain).state, "caution");
});

test("the report is plain text with every fact on its line", () => {
  const results = new Results();
  const facts = { device: "Mic 1", context_hz: 16_000 };
  results.set("microphone", { state: "good", text: { key: "check.mic_good" }, facts });
  const text = reportText(results, [["Browser", "X"]]);
  assert.ok(text.startsWith("check.report\n============\nBrowser: X\n\ncheck.browser: check.state_pending\n\n"));
  const told = "check.microphone: check.state_good\n  check.mic_good\n  device: Mic 1\n  context_hz: 16000\n\n";
  assert.ok(text.includes(told), text);
  assert.ok(text.endsWith("check.camera: check.state_pending\n"));
});

test("pictures are counted by the second", () => {
  const count = createRateCounter();
  assert.deepEqual(count(0), { rate: 0, count: 1 });
  for (let index = 1; index < 60; index += 1) count(index * 40);
  assert.deepEqual(count(60 * 40), { rate: 25, count: 61 });
});

const NO_ECHO = { isHeard: false, levelDb: -70, delayMs: 0 };
const SOFT_ECHO = { isHeard: true, levelDb: -42, delayMs: 80 };
const LOUD_ECHO = { isHeard: true, levelDb: -12.4, delayMs: 95.6 };

test("without any echo one can go on like this", () => {
  assert.equal(echoResult(NO_ECHO, NO_ECHO).text?.key, "check.echo_none");
  assert.equal(echoResult(SOFT_ECHO, NO_ECHO).text?.key, "check.echo_fine");
});

test("an echo the browser takes away is fine, one it leaves asks for headphones", () => {
  const removed = echoResult(LOUD_ECHO, SOFT_ECHO);
  assert.equal(removed.state, "good");
  assert.deepEqual(removed.text, { key: "check.echo_removed", params: { db: 12, ms: 96 } });
  const left = echoResult(LOUD_ECHO, LOUD_ECHO);
  assert.equal(left.state, "caution");
  assert.equal(left.next?.key, "check.echo_loud_next");
});

test("an echo that only appears with cancellation is told as well", () => {
  assert.equal(echoResult(NO_ECHO, LOUD_ECHO).text?.key, "check.echo_loud");
});

const SPEAKING = { rms: 0.1, peakDb: -8, word: /** @type {const} */ ("good"), goodMs: 900 };
const RUNNING = { state: /** @type {const} */ ("running") };

test("enough good speech is a good microphone, told once", () => {
  const result = microphoneResult(RUNNING, SPEAKING, 1_000, { device: "Mic" });
  assert.deepEqual(result, { state: "good", text: { key: "check.mic_good" }, facts: { device: "Mic" } });
  assert.equal(microphoneResult({ state: "good" }, SPEAKING, 2_000, {}), null);
});

test("one is given time to speak, then the trouble is named", () => {
  const quiet = { ...SPEAKING, word: /** @type {const} */ ("quiet"), goodMs: 0 };
  assert.equal(microphoneResult(RUNNING, quiet, 1_000, {}), null);
  assert.equal(microphoneResult(RUNNING, quiet, 7_000, {})?.text?.key, "check.mic_quiet");
  assert.equal(microphoneResult(RUNNING, { ...quiet, word: "waiting" }, 7_000, {})?.text?.key, "check.mic_unheard");
  assert.equal(microphoneResult(RUNNING, { ...quiet, word: "loud" }, 7_000, {})?.text?.key, "check.mic_loud");
});

test("dead silence is a failure until something is heard", () => {
  const silent = { ...SPEAKING, word: /** @type {const} */ ("silent"), goodMs: 0 };
  const found = microphoneResult(RUNNING, silent, 2_000, {});
  assert.equal(found?.text?.key, "problem.silent_microphone.title");
  assert.ok(found);
  assert.equal(microphoneResult(found, silent, 3_000, {}), null);
  assert.equal(microphoneResult(found, { ...silent, word: "waiting" }, 4_000, {})?.state, "running");
});
