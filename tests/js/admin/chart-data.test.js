import assert from "node:assert/strict";
import test from "node:test";

import { chartsOf, latest, lineName, spansOf, withGaps } from "../../../static/admin/chart-data.js";

/** @import { Line } from "../../../static/admin/chart-data.js" */

/** @returns {Http.History} */
function history() {
  return {
    period_s: 10,
    t: [600, 610, 900, 910],
    series: {
      "sessions.chat": [0, 0, 1, 0],
      "sessions.audio_duplex": [1, 2, 2, 3],
      "sessions.duplex": [0, 0, 0, 0],
      "queue.length": [0, 4, 1, 0],
      "queue.oldest_wait_s": [0, 12.5, 3, 0],
      "unit.p50_ms": [null, 200, 300, 250],
      "unit.p99_ms": [null, 400, 900, 500],
      "vram_used_mb.worker_0": [1_000, 1_100, null, 1_200],
      "vram_used_mb.worker_1": [500, 500, null, 500],
    },
  };
}

test("there is a chart for each question", () => {
  assert.deepEqual(
    chartsOf(history()).map(({ id, isEmpty }) => [id, isEmpty]),
    [
      ["sessions", false],
      ["queue", false],
      ["units", false],
      ["memory", false],
    ],
  );
});

test("kinds of older programs are shown only if there were any", () => {
  const plain = chartsOf(history())[0].lines.map(({ name }) => name);
  assert.deepEqual(plain, ["sessions.chat", "sessions.audio_duplex"]);
  const used = history();
  used.series["sessions.duplex"] = [0, 1, 0, 0];
  assert.equal(chartsOf(used)[0].lines.length, 3);
});

test("people and seconds have axes of their own", () => {
  assert.deepEqual(
    chartsOf(history())[1].lines.map(({ side }) => side),
    ["left", "right"],
  );
});

test("lines of one chart differ in more than colour when colours run out", () => {
  const many = history();
  for (let n = 2; n < 7; n += 1) many.series[`vram_used_mb.worker_${n}`] = [1, 1, 1, 1];
  const looks = chartsOf(many)[3].lines.map(({ tone, isDashed }) => `${tone} ${isDashed}`);
  assert.equal(new Set(looks).size, looks.length);
});

test("a chart of unknown values is empty, one of zeros is not", () => {
  const unknown = history();
  unknown.series["unit.p50_ms"] = unknown.series["unit.p99_ms"] = [null, null, null, null];
  unknown.series["queue.length"] = [0, 0, 0, 0];
  const [, queue, units] = chartsOf(unknown);
  assert.deepEqual([queue.isEmpty, units.isEmpty], [false, true]);
  assert.ok(chartsOf({ period_s: 10, t: [], series: {} }).every(({ isEmpty }) => isEmpty));
});

test("no line is drawn across a time nobody looked", () => {
  const { times, columns } = withGaps([0, 10, 100, 110], [[1, 2, 3, 4]], 25);
  assert.deepEqual(times, [0, 10, 55, 100, 110]);
  assert.deepEqual(columns, [[1, 2, null, 3, 4]]);
});

test("charts have gaps put in, every column as long as the times", () => {
  for (const { times, lines } of chartsOf(history())) {
    assert.equal(times.length, 5);
    assert.ok(lines.every(({ values }) => values.length === 5));
  }
});

test("the table sums up five minutes at a time, newest first", () => {
  assert.deepEqual(spansOf(history(), 300), [
    { startS: 900, sessions: 3, queue: 1, waitS: 3, p50Ms: 250, p99Ms: 900, memoryMb: 1_700 },
    { startS: 600, sessions: 2, queue: 4, waitS: 12.5, p50Ms: 200, p99Ms: 400, memoryMb: 1_600 },
  ]);
});

test("what nobody knows stays unknown", () => {
  assert.deepEqual(spansOf({ period_s: 10, t: [600], series: { "unit.p50_ms": [null] } }, 300), [
    { startS: 600, sessions: null, queue: null, waitS: null, p50Ms: null, p99Ms: null, memoryMb: null },
  ]);
  assert.deepEqual(spansOf({ period_s: 10, t: [], series: {} }, 300), []);
});

test("what is told of now is never older, and whose memory it is", () => {
  assert.equal(latest([1, null, 2]), 2);
  assert.equal(latest([1, 2, null]), null);
  assert.equal(latest([]), null);
  const line = /** @type {Line} */ (/** @type {Partial<Line>} */ ({ name: "vram_used_mb.worker_3" }));
  assert.equal(lineName(line), "worker_3");
});
