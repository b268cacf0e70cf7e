import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { endReason } from "../../../static/shared/server-messages.js";
import { warningOf, problemOfDevice, problemOfEnd } from "../../../static/duplex/lib/call-state.js";

const TEXTS = JSON.parse(readFileSync(new URL("../../../static/i18n/en.json", import.meta.url), "utf8"));

test("what the user wanted is no problem", () => {
  for (const code of /** @type {const} */ (["stopped", "cancelled", "page_left"])) {
    assert.equal(problemOfEnd(endReason(code)), null);
  }
});

test("each end has a sentence of its own", () => {
  const codes = /** @type {const} */ ([
    "queue_full",
    "queue_cancelled",
    "not_ready",
    "worker_lost",
    "network_lost",
    "server_gone",
    "app_disabled",
    "ended_by_admin",
    "kv_limit",
    "context_full",
    "socket_blocked",
    "refused",
    "closed",
    "session_in_use",
    "origin_refused",
    "shutting_down",
    "generation_failed",
    "bad_config",
    "internal",
    "rate_limited",
  ]);
  const titles = new Set();
  for (const code of codes) {
    const problem = problemOfEnd(endReason(code));
    assert.equal(problem?.code, code);
    assert.ok(TEXTS[`problem.${code}.title`] && TEXTS[`problem.${code}.next`], code);
    titles.add(TEXTS[`problem.${code}.title`]);
  }
  assert.equal(titles.size, codes.length);
});

test("a timeout says which limit it was", () => {
  assert.equal(problemOfEnd(endReason("timeout", "", "pause"))?.code, "pause_timeout");
  assert.equal(problemOfEnd(endReason("timeout", "", "max_session"))?.code, "max_session");
  assert.equal(problemOfEnd(endReason("timeout", "", "inactivity"))?.code, "timeout");
});

test("starting again is offered where it may help", () => {
  assert.deepEqual(problemOfEnd(endReason("worker_lost"))?.steps, ["restart"]);
  assert.deepEqual(problemOfEnd(endReason("app_disabled"))?.steps, ["home"]);
});

test("a microphone in the middle of a call is opened again, before it the call is started again", () => {
  const refused = Object.assign(new Error("no"), { code: "permission_denied" });
  assert.deepEqual(problemOfDevice(refused, false).steps, ["retry", "check"]);
  assert.deepEqual(problemOfDevice(refused, true).steps, ["reconnect", "check"]);
  assert.deepEqual(problemOfDevice({ code: "insecure_context" }, false).steps, []);
  assert.equal(problemOfDevice("strange", false).code, "unsupported");
});

test("problems of a call are mild", () => {
  assert.equal(warningOf("silent_microphone").kind, "caution");
  assert.ok(TEXTS["problem.sound_suspended.title"]);
});
