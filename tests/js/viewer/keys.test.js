import assert from "node:assert/strict";
import { test } from "node:test";

import { KEY_HELP, actionOf } from "../../../static/viewer/time-axis.js";

test("keys do what the help says", () => {
  assert.deepEqual(actionOf({ key: " " }), { kind: "toggle" });
  assert.deepEqual(actionOf({ key: "K" }), { kind: "toggle" });
  assert.deepEqual(actionOf({ key: "ArrowLeft" }), { kind: "seekBy", s: -1 });
  assert.deepEqual(actionOf({ key: "ArrowRight", shiftKey: true }), { kind: "seekBy", s: 5 });
  assert.deepEqual(actionOf({ key: "j" }), { kind: "seekBy", s: -10 });
  assert.deepEqual(actionOf({ key: "l" }), { kind: "seekBy", s: 10 });
  assert.deepEqual(actionOf({ key: "," }), { kind: "unit", by: -1 });
  assert.deepEqual(actionOf({ key: "." }), { kind: "unit", by: 1 });
  assert.deepEqual(actionOf({ key: "Home" }), { kind: "seekTo", end: false });
  assert.deepEqual(actionOf({ key: "End" }), { kind: "seekTo", end: true });
  assert.deepEqual(actionOf({ key: "?", shiftKey: true }), { kind: "help" });
});

test("the browser's own shortcuts stay its own", () => {
  for (const modifier of ["ctrlKey", "altKey", "metaKey"]) assert.equal(actionOf({ key: "l", [modifier]: true }), null);
  assert.equal(actionOf({ key: "Tab" }), null);
  assert.equal(actionOf({ key: "x" }), null);
});

test("every key in the help does something", () => {
  const names = { Space: " ", "←": "ArrowLeft", "→": "ArrowRight" };
  for (const { keys } of KEY_HELP) {
    for (const shown of keys) {
      const key = shown.replace("Shift ", "");
      const named = Object.entries(names).find(([name]) => name === key)?.[1] ?? key;
      assert.notEqual(actionOf({ key: named, shiftKey: shown.startsWith("Shift") }), null, shown);
    }
  }
});
