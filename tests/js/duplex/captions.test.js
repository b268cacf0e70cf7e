import assert from "node:assert/strict";
import { test } from "node:test";

import { captioned, withCaptions } from "../../../static/duplex/lib/session-state.js";

/** @import { UnitRecord } from "../../../static/duplex/lib/full-duplex.js" */

/** Units answered 100 ms after they came. @param {number} count @returns {UnitRecord[]} */
const units = (count) =>
  Array.from({ length: count }, (_, index) => {
    const unit = { heardMs: (index + 1) * 1_000, arrivalMs: 5_000 + (index + 1) * 1_000 + 100, wallClockMs: 100 };
    return /** @type {UnitRecord} */ (unit); // only what captions read
  });
const said = (/** @type {string} */ text, start_ms = 1_500, duration_ms = 800) => ({
  type: "user_transcript",
  text,
  start_ms,
  duration_ms,
});
/** @param {number} startedAtMs @param {number} lengthMs */
const turn = (startedAtMs, lengthMs) => ({ startedAtMs, lengthMs, bars: [1], isOpen: false });

test("words stand where their sound was recorded", () => {
  const [caption] = captioned([], said(" Hello. "), units(3), 99_000);
  assert.deepEqual(caption, { text: "Hello.", startedAtMs: 6_500, lengthMs: 800, isTyped: false });
});

test("before any unit was answered they stand just before they came", () => {
  assert.equal(captioned([], said("Hello."), [], 9_000)[0].startedAtMs, 8_200);
});

test("no words change nothing, and the oldest of many go", () => {
  const none = captioned([], said(" "), units(3), 0);
  assert.equal(captioned(none, said(""), units(3), 0), none);
  let captions = none;
  for (let index = 0; index < 70; index++) captions = captioned(captions, said(String(index)), units(3), 0);
  assert.deepEqual([captions.length, captions[0].text], [60, "10"]);
});

test("a turn that was heard gets its words, several segments of it together", () => {
  const turns = [turn(6_400, 2_500), turn(20_000, 1_000)];
  let captions = captioned([], said("One."), units(3), 0);
  captions = captioned(captions, said("Two.", 2_600, 900), units(4), 0);
  const shown = withCaptions(turns, captions);
  assert.deepEqual(
    shown.map(({ text }) => text),
    ["One. Two.", undefined],
  );
  assert.equal(withCaptions(turns, []), turns);
});

test("words of which no turn was heard, and typed ones, are turns of their own", () => {
  let captions = captioned([], said("Faint."), units(3), 0);
  captions = captioned(captions, { type: "text_added", text: "Typed.", start_ms: 0 }, units(3), 6_500);
  const shown = withCaptions([turn(9_000, 500)], captions);
  assert.deepEqual(
    shown.slice(1).map(({ text, lengthMs }) => [text, lengthMs]),
    [
      ["Faint.", 800],
      ["Typed.", 0],
    ],
  );
  assert.deepEqual(
    withCaptions([turn(6_500, 900)], captions).map(({ text }) => text),
    ["Faint.", "Typed."],
  );
});
