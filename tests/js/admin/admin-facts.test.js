import assert from "node:assert/strict";
import test from "node:test";

import {
  auditAction,
  changesOf,
  ETA_FIELDS,
  fieldProblem,
  linkedToken,
  overviewOf,
  restartBlock,
  savedValue,
  sessionRows,
  TONES,
  workerState,
} from "../../../static/admin/admin-facts.js";

/** @param {Partial<Http.WorkerInfo>} [changes] @returns {Http.WorkerInfo} */
function worker(changes = {}) {
  return /** @type {Http.WorkerInfo} */ ({
    worker_id: "worker_0",
    gpu_id: 0,
    status: "idle",
    total_requests: 0,
    avg_inference_time_ms: 0,
    last_heartbeat: null,
    cached_hash: null,
    slots: 2,
    free_slots: 2,
    is_draining: false,
    error: null,
    last_error: null,
    last_error_at: null,
    vram_used_mb: null,
    vram_total_mb: null,
    kv_cache_tokens: 0,
    uptime_s: 1,
    sessions: [],
    model: null,
    loading: null,
    can_restart: true,
    is_restarting: false,
    ...changes,
  });
}

const SESSION = { session_id: "a", request_type: /** @type {const} */ ("omni_duplex"), started_at: "2026-01-01T00:00:00Z" };

test("the overview adds up places and memory of those who tell", () => {
  const status = /** @type {Http.ServiceStatus} */ (
    /** @type {unknown} */ ({
      total_workers: 3,
      idle_workers: 1,
      busy_workers: 1,
      loading_workers: 0,
      error_workers: 1,
      offline_workers: 1,
      queue_length: 2,
      max_queue_size: 9,
      is_intake_paused: false,
      running_tasks: [],
    })
  );
  const workers = [
    worker({ vram_used_mb: 10, vram_total_mb: 100 }),
    worker({ free_slots: 0 }),
    worker({ vram_used_mb: 5, vram_total_mb: 50 }),
  ];
  const facts = overviewOf(status, workers);
  assert.deepEqual([facts.places, facts.freePlaces, facts.broken, facts.queue_length], [6, 4, 2, 2]);
  assert.deepEqual([facts.memoryUsedMb, facts.memoryTotalMb], [15, 150]);
  assert.equal(overviewOf(status, [worker()]).memoryUsedMb, null);
});

for (const [changes, state, tone] of /** @type {[Partial<Http.WorkerInfo>, string, string][]} */ ([
  [{}, "idle", "good"],
  [{ status: "duplex_active" }, "busy", "good"],
  [{ is_draining: true }, "draining", "caution"],
  [{ status: "loading" }, "starting", "caution"],
  [{ status: "loading", loading: { stage: "weights", progress: 0.5 } }, "loading", "caution"],
  [{ status: "error", is_draining: true }, "error", "bad"],
  [{ status: "offline" }, "offline", "bad"],
  [{ status: "offline", is_restarting: true }, "restart_stops", "caution"],
  [{ is_restarting: true, sessions: [SESSION] }, "restart_waits", "caution"],
])) {
  test(`a worker with ${JSON.stringify(changes)} is ${state}`, () => {
    const is = workerState(worker(changes));
    assert.deepEqual([is, TONES[is]], [state, tone]);
  });
}

test("why a worker cannot be started again", () => {
  assert.equal(restartBlock(worker()), null);
  assert.equal(restartBlock(worker({ can_restart: false })), "alone");
  assert.equal(restartBlock(worker({ can_restart: false, status: "offline" })), "offline");
  assert.equal(restartBlock(worker({ is_restarting: true, status: "offline" })), "under_way");
});

test("who is served comes before who is only connected; who waits is not here", () => {
  const live = /** @type {Http.SessionInfo[]} */ ([
    {
      session_id: "served",
      request_type: /** @type {const} */ ("omni_duplex"),
      worker_id: "worker_0",
      phase: "relaying",
      last_active: null,
    },
    {
      session_id: "resting",
      request_type: /** @type {const} */ ("streaming"),
      worker_id: null,
      phase: "open",
      last_active: "2026-01-01T00:00:00Z",
    },
    {
      session_id: "waiting",
      request_type: /** @type {const} */ ("streaming"),
      worker_id: null,
      phase: "waiting",
      last_active: null,
    },
    { session_id: "", request_type: null, worker_id: "worker_1", phase: null, last_active: null },
  ]);
  const task = { worker_id: "worker_0", started_at: "x", elapsed_s: 5, estimated_remaining_s: 3 };
  const queue = {
    queue_length: 1,
    max_queue_size: 9,
    items: [],
    running_tasks: [
      { ...task, request_type: /** @type {const} */ ("omni_duplex"), session_id: "served" },
      { ...task, request_type: /** @type {const} */ ("chat"), session_id: null },
    ],
  };
  const rows = sessionRows(live, queue, Date.parse("2026-01-01T00:00:09Z"));
  assert.deepEqual(
    rows.map(({ sessionId, isServed, elapsedS }) => [sessionId, isServed, elapsedS]),
    [
      ["served", true, 5],
      [null, true, 5],
      ["resting", false, 9],
    ],
  );
  assert.deepEqual(
    rows.map(({ canStop }) => canStop),
    [true, false, true],
  );
  assert.equal(new Set(rows.map(({ key }) => key)).size, 3);
});

test("deeds have names, also for routes nobody knows yet", () => {
  assert.equal(auditAction("DELETE /api/queue/{ticket_id}"), "cancel");
  assert.equal(auditAction("PATCH /api/new"), null);
});

const ETA = /** @type {Http.EtaStatus} */ (
  /** @type {unknown} */ ({
    config: {
      eta_chat_s: 15,
      eta_streaming_s: 20,
      eta_half_duplex_s: 180,
      eta_audio_duplex_s: 120,
      eta_omni_duplex_s: 90,
      eta_duplex_s: null,
      ema_alpha: null,
    },
    ema_alpha: 0.3,
  })
);

/** @param {Record<string, string>} changes */
function typed(changes) {
  const saved = ETA_FIELDS.map(({ name }) => [name, String(savedValue(ETA, name) ?? "")]);
  return { .../** @type {Record<string, string>} */ (Object.fromEntries(saved)), ...changes };
}

test("only what was changed is sent; an emptied field that may be empty is null", () => {
  assert.deepEqual(changesOf(ETA, typed({})), {});
  assert.deepEqual(changesOf(ETA, typed({ eta_chat_s: "15.0" })), {});
  assert.deepEqual(changesOf(ETA, typed({ eta_chat_s: "7.5", ema_alpha: "1" })), { eta_chat_s: 7.5, ema_alpha: 1 });
  assert.deepEqual(changesOf(ETA, typed({ eta_duplex_s: "60" })), { eta_duplex_s: 60 });
});

for (const [name, text, problem] of /** @type {[string, string, string | null][]} */ ([
  ["eta_chat_s", "1", null],
  ["eta_chat_s", "", "missing"],
  ["eta_chat_s", "0", "not_positive"],
  ["eta_chat_s", "-3", "not_positive"],
  ["eta_chat_s", "Infinity", "not_positive"],
  ["eta_duplex_s", "", null],
  ["ema_alpha", "1", null],
  ["ema_alpha", "1.01", "too_large"],
  ["ema_alpha", "0", "not_positive"],
])) {
  test(`"${text}" in ${name} is ${problem ?? "fine"}`, () => {
    const field = ETA_FIELDS.find((each) => each.name === name);
    assert.ok(field);
    assert.equal(fieldProblem(field, text), problem);
  });
}

test("the token of a link is decoded, or taken as it is", () => {
  assert.deepEqual(["", "#workers", "#token=", "#token=a%2Bb", "#token=50%"].map(linkedToken), ["", "", "", "a+b", "50%"]);
});
