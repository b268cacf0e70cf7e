import assert from "node:assert/strict";
import { test } from "node:test";

import { SettingsStore, accept } from "../../static/shared/settings-store.js";
import { FakeStorage } from "./fakes/storage.js";

const FIELDS = /** @type {const} */ ({
  delayMs: { type: "number", initial: 200, min: 0, max: 2000, step: 1 },
  penalty: { type: "number", initial: 1.1, min: 0.1, max: 5, step: 0.05 },
  isLoud: { type: "boolean", initial: false },
  gate: { type: "choice", initial: "energy", choices: ["energy", "silero"] },
});
const KEY = "page_settings";

/** @param {Record<string, string>} [kept] */
const storeWith = (kept) => {
  const storage = new FakeStorage(kept);
  return { storage, store: new SettingsStore(KEY, FIELDS, storage) };
};

test("the strongest of preset, choice, server and page wins", () => {
  const { store } = storeWith();
  assert.equal(store.get("delayMs"), 200);
  store.applyServer({ delayMs: 300 });
  assert.equal(store.get("delayMs"), 300);
  store.set("delayMs", 400);
  store.applyServer({ delayMs: 350 });
  assert.equal(store.get("delayMs"), 400);
  store.applyPreset({ delayMs: 500 });
  assert.equal(store.get("delayMs"), 500);
  store.applyPreset({});
  assert.equal(store.get("delayMs"), 400);
});

test("what the visitor changes after a preset holds", () => {
  const { store } = storeWith();
  store.applyPreset({ delayMs: 500, penalty: 1.3 });
  store.set("delayMs", 100);
  assert.equal(store.get("delayMs"), 100);
  assert.equal(store.get("penalty"), 1.3);
});

test("choices outlive the page, presets do not", () => {
  const { store, storage } = storeWith();
  store.set("isLoud", true);
  store.applyPreset({ gate: "silero" });
  const again = new SettingsStore(KEY, FIELDS, storage);
  assert.equal(again.get("isLoud"), true);
  assert.equal(again.get("gate"), "energy");
});

test("what was chosen in another tab is kept", () => {
  const { store, storage } = storeWith({ [KEY]: '{"penalty":1.3}' });
  const other = new SettingsStore(KEY, FIELDS, storage);
  other.set("isLoud", true);
  store.set("delayMs", 400);
  const again = new SettingsStore(KEY, FIELDS, storage);
  assert.deepEqual([again.get("penalty"), again.get("isLoud"), again.get("delayMs")], [1.3, true, 400]);
});

test("what was kept by somebody else, or broken, is ignored", () => {
  for (const kept of ["{", "null", "[]", '"x"', '{"delayMs":"many","gate":"none","other":1}']) {
    assert.equal(storeWith({ [KEY]: kept }).store.get("delayMs"), 200, kept);
  }
});

test("a value outside of its bounds is moved to the bound, nonsense changes nothing", () => {
  assert.equal(accept(FIELDS.delayMs, 99_999), 2000);
  assert.equal(accept(FIELDS.delayMs, "150.4"), 150);
  assert.equal(accept(FIELDS.penalty, "1.25"), 1.25);
  for (const nonsense of ["", "  ", "x", Number.NaN, Infinity, undefined]) {
    assert.equal(accept(FIELDS.delayMs, nonsense), null);
  }
  assert.equal(accept(FIELDS.isLoud, "true"), null);
  const { store } = storeWith();
  store.set("delayMs", "nothing");
  assert.equal(store.get("delayMs"), 200);
});

test("reset forgets choices and keeps the server's defaults", () => {
  const { store, storage } = storeWith();
  store.applyServer({ penalty: 1.2 });
  store.set("penalty", 2);
  store.reset();
  assert.equal(store.get("penalty"), 1.2);
  assert.equal(storage.getItem(KEY), null);
});

test("every change is told once, a refused one too, so that the input shows the truth again", () => {
  const { store } = storeWith();
  let told = 0;
  store.addEventListener("change", () => (told += 1));
  store.set("delayMs", 1);
  store.set("delayMs", "x");
  assert.equal(told, 2);
});

test("a browser that keeps nothing still has settings", () => {
  const store = new SettingsStore(KEY, FIELDS, null);
  store.set("isLoud", true);
  assert.equal(store.get("isLoud"), true);
  const full = new FakeStorage();
  full.isFull = true;
  const other = new SettingsStore(KEY, FIELDS, full);
  other.set("isLoud", true);
  assert.equal(other.get("isLoud"), true);
});
