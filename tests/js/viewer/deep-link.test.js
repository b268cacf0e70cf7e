import assert from "node:assert/strict";
import { test } from "node:test";

import { readMoment, withMoment } from "../../../static/viewer/time-axis.js";

test("a moment is read in seconds or as on a clock", () => {
  const told = { "?t=12.3": 12.3, "?t=0": 0, "?lang=zh&t=7s": 7, "?t=1:05": 65, "?t=1:02:03.5": 3_723.5 };
  for (const [search, atS] of Object.entries(told)) assert.equal(readMoment(search), atS, search);
});

test("what is no moment names none", () => {
  for (const search of ["", "?t=", "?t=abc", "?t=-3", "?t=Infinity", "?x=12"]) assert.equal(readMoment(search), null, search);
});

test("a moment is put into an address that keeps everything else", () => {
  assert.equal(withMoment("http://h/s/a?lang=zh#x", 12.345), "http://h/s/a?lang=zh&t=12.3#x");
  assert.equal(withMoment("http://h/s/a?t=4&lang=zh", 7), "http://h/s/a?t=7&lang=zh");
  assert.equal(withMoment("http://h/s/a?t=4", 0.04), "http://h/s/a");
});

test("what is written is read back", () => {
  for (const atS of [0.1, 12.3, 1_799.9]) assert.equal(readMoment(new URL(withMoment("http://h/s/a", atS)).search), atS);
});
