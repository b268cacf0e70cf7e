// @ts-check
import assert from "node:assert/strict";
import test from "node:test";

import { planRows } from "../../../static/admin/row-plan.js";

/**
 * Does what a plan says, as a page does.
 *
 * @param {string[]} shown
 * @param {string[]} wanted
 */
function carriedOut(shown, wanted) {
  const plan = planRows(shown, wanted);
  let rows = shown.filter((key) => !plan.removed.includes(key));
  for (const { key, before } of plan.placed) {
    rows = rows.filter((each) => each !== key);
    rows.splice(before === null ? rows.length : rows.indexOf(before), 0, key);
  }
  return { rows, touched: plan.placed.length };
}

/** @param {string} word */
const letters = (word) => [...word];

test("nothing is touched when nothing has changed", () => {
  assert.deepEqual(planRows(letters("abc"), letters("abc")), { removed: [], placed: [] });
});

for (const [shown, wanted, most] of /** @type {[string, string, number][]} */ ([
  ["", "abc", 3],
  ["abc", "", 0],
  ["abc", "bc", 0],
  ["abc", "abcd", 1],
  ["abc", "xabc", 1],
  ["abcdef", "fabcde", 1],
  ["abcd", "bcda", 1],
  ["abcdef", "badcfe", 3],
  ["abcd", "dcba", 3],
  ["abcdef", "xcyad", 3],
])) {
  test(`"${shown}" becomes "${wanted}" with at most ${most} rows placed`, () => {
    const { rows, touched } = carriedOut(letters(shown), letters(wanted));
    assert.equal(rows.join(""), wanted);
    assert.ok(touched <= most, `${touched} rows were placed`);
  });
}

test("any order comes out right", () => {
  let seed = 7;
  const random = () => (seed = (seed * 48_271) % 2_147_483_647) / 2_147_483_647;
  const some = () =>
    letters("abcdefghij")
      .filter(() => random() < 0.6)
      .sort(() => random() - 0.5);
  for (let round = 0; round < 300; round += 1) {
    const [shown, wanted] = [some(), some()];
    assert.equal(carriedOut(shown, wanted).rows.join(""), wanted.join(""), `${shown.join("")} to ${wanted.join("")}`);
  }
});
