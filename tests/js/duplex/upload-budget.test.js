import assert from "node:assert/strict";
import { test } from "node:test";

import { UploadBudget } from "../../../static/duplex/lib/duplex-session.js";

const KIB = 1024;

test("small units may wait up to a floor, pictures up to half of it", () => {
  const budget = new UploadBudget();
  budget.noteChunk(10 * KIB);
  assert.equal(budget.allowsPicture(128 * KIB), true);
  assert.equal(budget.allowsPicture(128 * KIB + 1), false);
  assert.equal(budget.allowsChunk(256 * KIB), true);
  assert.equal(budget.allowsChunk(256 * KIB + 1), false);
});

test("a unit is its sound and the pictures that went ahead of it, and the largest one counts", () => {
  const budget = new UploadBudget();
  budget.notePicture(100 * KIB);
  budget.notePicture(100 * KIB);
  budget.noteChunk(100 * KIB);
  budget.noteChunk(100 * KIB);
  assert.equal(budget.allowsChunk(900 * KIB), true);
  assert.equal(budget.allowsChunk(900 * KIB + 1), false);
  assert.equal(budget.allowsPicture(450 * KIB), true);
  assert.equal(budget.allowsPicture(450 * KIB + 1), false);
});
