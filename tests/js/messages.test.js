import assert from "node:assert/strict";
import { test } from "node:test";

import { interpolate, pickLanguage } from "../../static/shared/texts.js";

const OFFERED = ["en", "zh"];

test("the strongest wish that can be met decides the language", () => {
  const wishes = { query: "zh", stored: "en", server: "en", browser: ["en-GB"], fallback: "en" };
  assert.equal(pickLanguage(OFFERED, wishes), "zh");
  assert.equal(pickLanguage(OFFERED, { ...wishes, query: "fr", stored: null }), "en");
  assert.equal(pickLanguage(OFFERED, { browser: ["fr-FR", "zh-Hant-TW"], fallback: "en" }), "zh");
  assert.equal(pickLanguage(OFFERED, { browser: ["zh_CN"], fallback: "en" }), "zh");
  assert.equal(pickLanguage(OFFERED, { browser: ["fr"], fallback: "en" }), "en");
});

test("where nobody knows what there is, the first wish that looks like a language is tried", () => {
  assert.equal(pickLanguage(null, { query: "../x", stored: "zh", browser: ["en"], fallback: "en" }), "zh");
  assert.equal(pickLanguage(null, { query: "fil-PH", browser: ["en"], fallback: "en" }), "fil");
  assert.equal(pickLanguage(null, { query: "", stored: "klingon", fallback: "en" }), "en");
});

test("names in a text are replaced, unknown ones stay to be seen", () => {
  assert.equal(interpolate("{n} of {total}: {n}", { n: 2, total: 3 }), "2 of 3: 2");
  assert.equal(interpolate("{who}", {}), "{who}");
  assert.equal(interpolate("{n}", { n: 0 }), "0");
});

test("a value that looks like a name is not replaced again", () => {
  assert.equal(interpolate("{a}{b}", { a: "{b}", b: "$&" }), "{b}$&");
});
