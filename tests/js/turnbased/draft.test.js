import assert from "node:assert/strict";
import { test } from "node:test";

import { forgetfulHistory, openDraft } from "../../../static/turnbased/history-store.js";

function memory() {
  /** @type {Map<string, string>} */ const kept = new Map();
  return {
    getItem: (/** @type {string} */ key) => kept.get(key) ?? null,
    setItem: (/** @type {string} */ key, /** @type {string} */ value) => void kept.set(key, value),
    removeItem: (/** @type {string} */ key) => void kept.delete(key),
  };
}

test("each tab keeps its own draft, and a new tab takes the last one", async () => {
  const [shared, first, second] = [memory(), memory(), memory()];
  /** What a page of the tab reads, which keeps it at once. @param {ReturnType<typeof memory>} tab */
  const open = async (tab) => {
    const draft = openDraft(forgetfulHistory(), shared, tab);
    const { text } = await draft.read();
    draft.keep(text, []);
    return { draft, text };
  };
  const one = await open(first);
  one.draft.keep("In one tab", []);
  const other = await open(second);
  assert.equal(other.text, "In one tab");
  other.draft.keep("In the other", []);
  assert.equal((await open(first)).text, "In one tab");
  assert.equal((await open(second)).text, "In the other");

  const again = await open(first);
  other.draft.keep("In the other, longer", []);
  again.draft.keep("", []); // sent
  assert.equal((await open(first)).text, "", "not the other tab's");
  assert.equal((await open(memory())).text, "In the other, longer");
  other.draft.keep("", []);
  assert.equal((await open(memory())).text, "");
});
