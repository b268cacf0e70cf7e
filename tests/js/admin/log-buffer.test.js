import assert from "node:assert/strict";
import test from "node:test";

import { LogBuffer, isMatch, severityOf } from "../../../static/admin/admin-facts.js";

/** @param {string} text @param {string | null} [level] */
const line = (text, level = "info") => ({ text, level, time: "2026-01-01T10:00:00Z" });

test("the oldest lines go when there are too many", () => {
  const buffer = new LogBuffer(3);
  buffer.add([line("a"), line("b")]);
  const added = buffer.add([line("c"), line("d")]);
  assert.equal(added.map(({ text }) => text).join(""), "cd");
  assert.equal(buffer.lines.map(({ text }) => text).join(""), "bcd");
});

test("more lines at once than are kept take the place of all others", () => {
  const buffer = new LogBuffer(2);
  buffer.add([line("a")]);
  const added = buffer.add([line("b"), line("c"), line("d")]);
  assert.equal(added.map(({ text }) => text).join(""), "cd");
  assert.equal(buffer.lines.length, 2);
});

test("every line has a number of its own, also after clearing", () => {
  const buffer = new LogBuffer(9);
  const first = buffer.add([line("a")])[0].id;
  buffer.clear();
  assert.deepEqual(buffer.lines, []);
  assert.notEqual(buffer.add([line("a")])[0].id, first);
});

test("how grave a line is, by its level or its words", () => {
  assert.equal(severityOf(line("x", "WARNING")), "warning");
  assert.equal(severityOf(line("x", "critical")), "error");
  assert.equal(severityOf(line("x", "debug")), "debug");
  assert.equal(severityOf(line("x", "something")), "info");
  assert.equal(severityOf(line("request method=GET path=/api/admin/logs program=gateway status=200")), "debug");
  assert.equal(severityOf(line("request method=GET path=/api/admin/logs program=gateway status=500", "error")), "error");
  assert.equal(severityOf(line("Traceback (most recent call last):", null)), "error");
  assert.equal(severityOf(line("ValueError: no", null)), "error");
  assert.equal(severityOf(line("an Error: in the middle", null)), "info");
});

test("a line is shown if it is grave enough and holds the words, whatever their case", () => {
  const [kept] = new LogBuffer(1).add([line("Worker lost", "warning")]);
  assert.ok(isMatch(kept, { text: "", least: "debug" }));
  assert.ok(isMatch(kept, { text: " LOST ", least: "warning" }));
  assert.ok(isMatch(kept, { text: "10:00", least: "info" }));
  assert.ok(!isMatch(kept, { text: "found", least: "info" }));
  assert.ok(!isMatch(kept, { text: "", least: "error" }));
});
