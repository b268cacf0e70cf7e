import assert from "node:assert/strict";
import test, { afterEach, mock } from "node:test";

import { newSessionId } from "../../static/shared/live-socket.js";
import { probeServer } from "../../static/shared/network.js";
import { SESSION_ID_PATTERN } from "../../static/shared/protocol.js";

afterEach(() => mock.restoreAll());

/** @param {Record<string, unknown>} answers By path; what is missing cannot be reached. */
function serve(answers) {
  mock.method(globalThis, "fetch", async (/** @type {string} */ path) => {
    if (!(path in answers)) throw new TypeError("unreachable");
    return Response.json(answers[path]);
  });
}

test("ids are what the server takes and never the same", () => {
  const ids = new Set(Array.from({ length: 200 }, () => newSessionId("omni", 1_700_000_000_000)));
  assert.equal(ids.size, 200);
  for (const id of ids) assert.match(id, SESSION_ID_PATTERN);
});

test("a look at the server tells apart what is wrong", async () => {
  serve({});
  assert.equal((await probeServer("omni")).isReachable, false);
  serve({ "/health": { ready: false, workers_ready: 0 }, "/api/apps": { apps: [{ app_id: "omni" }] } });
  const loading = await probeServer("omni");
  assert.deepEqual([loading.isReachable, loading.isReady, loading.isAppEnabled], [true, false, true]);
  serve({ "/health": { ready: true, workers_ready: 2 }, "/api/apps": { apps: [] } });
  const disabled = await probeServer("omni");
  assert.deepEqual([disabled.isReady, disabled.isAppEnabled], [true, false]);
  serve({ "/health": { status: "healthy" } });
  const old = await probeServer("omni");
  assert.deepEqual([old.isReady, old.isAppEnabled], [true, true]);
});
