import assert from "node:assert/strict";
import { test } from "node:test";
import { CodedError } from "../../static/shared/texts.js";
import { late } from "../../static/shared/async.js";

test("a part is loaded and made once, however often it is asked for", async () => {
  let loads = 0;
  const part = late(
    async () => ++loads,
    (number) => ({ number }),
  );
  const [first, second] = await Promise.all([part(), part()]);
  assert.equal(first, second);
  assert.deepEqual(await part(), { number: 1 });
});

test("a part that does not come is told by its code and asked for again", async () => {
  let isThere = false;
  const part = late(async () => {
    if (!isThere) throw new TypeError("Failed to fetch dynamically imported module");
    return "here";
  });
  await assert.rejects(part(), (/** @type {CodedError} */ error) => error instanceof CodedError && error.code === "missing_part");
  isThere = true;
  assert.equal(await part(), "here");
});

test("a fault of what was loaded is not taken for a missing part", async () => {
  const part = late(
    async () => "here",
    () => {
      throw new RangeError("broken");
    },
  );
  await assert.rejects(part(), RangeError);
});
