import assert from "node:assert/strict";
import { test } from "node:test";

import { lineOpacity, paintSubtitles, subtitleAt, wrapText } from "../../../static/duplex/lib/picture-taker.js";
import { inOrder } from "../../../static/duplex/lib/session-state.js";

/** @import { TranscriptTurn } from "../../../static/duplex/lib/full-duplex.js" */

/** @param {Partial<TranscriptTurn>} given */
const turn = (given) => ({ turnId: 1, text: "", startedAtMs: 0, endedAtMs: null, isInterrupted: false, ...given });

test("what is being said is shown, and lingers a little", () => {
  assert.equal(subtitleAt([], 0), "");
  assert.equal(subtitleAt([turn({ text: " Hello\n you " })], 60_000), "Hello you");
  const ended = [turn({ text: "Bye", endedAtMs: 1_000 })];
  assert.equal(subtitleAt(ended, 4_900), "Bye");
  assert.equal(subtitleAt(ended, 5_100), "");
});

test("a long text keeps its end", () => {
  const text = `${"a".repeat(700)} end`;
  assert.ok(subtitleAt([turn({ text })], 0).endsWith(" end"));
  assert.ok(subtitleAt([turn({ text })], 0).length <= 600);
});

const width = (/** @type {string} */ text) => text.length;

test("lines break between words", () => {
  assert.deepEqual(wrapText("one two three four", 9, width), ["one two", "three", "four"]);
  assert.deepEqual(wrapText("", 9, width), []);
});

test("a word longer than the line stands alone", () => {
  assert.deepEqual(wrapText("a extraordinarily b", 5, width), ["a", "extraordinarily", "b"]);
});

test("Chinese breaks between any two characters", () => {
  assert.deepEqual(wrapText("你好世界再见", 4, width), ["你好世界", "再见"]);
});

test("lines fade from the newest to the oldest", () => {
  const look = { bottomPercent: 90, topPercent: 15 };
  assert.equal(lineOpacity(0, 4, look), 0.9);
  assert.equal(lineOpacity(3, 4, look), 0.15);
  assert.equal(lineOpacity(9, 4, look), 0.15);
  assert.equal(lineOpacity(0, 1, look), 0.9);
});

test("only as many lines are painted as fit, the newest at the foot", () => {
  /** @type {{text: string, y: number, alpha: number}[]} */
  const painted = [];
  const ctx = {
    globalAlpha: 1,
    save() {},
    restore() {},
    strokeText() {},
    measureText: (/** @type {string} */ text) => ({ width: text.length * 10 }),
    /** @param {string} text @param {number} _x @param {number} y */
    fillText(text, _x, y) {
      painted.push({ text, y, alpha: this.globalAlpha });
    },
  };
  const look = { isOn: true, heightPercent: 15, bottomPercent: 90, topPercent: 10 };
  paintSubtitles(/** @type {any} */ (ctx), 100, 140, "one two three four five six", look); // any: a part of a context
  assert.deepEqual(
    painted.map(({ text }) => text),
    ["six", "four five"],
  ); // of four lines
  assert.ok(painted.every(({ y }, at) => at === 0 || y < painted[at - 1].y));
  assert.equal(painted[0].alpha, 0.9);
});

test("the turns of both sides stand in the order they began", () => {
  const model = [turn({ text: "a", startedAtMs: 1 }), turn({ text: "c", startedAtMs: 3 })];
  const user = [{ startedAtMs: 2, lengthMs: 900, bars: [], isOpen: false }];
  assert.deepEqual(
    inOrder(model, user).map(({ key, model, user }) => [key, model?.text, user?.lengthMs]),
    [
      ["m1", "a", undefined],
      ["u2", undefined, 900],
      ["m3", "c", undefined],
    ],
  );
});
