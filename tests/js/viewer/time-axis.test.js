import assert from "node:assert/strict";
import { test } from "node:test";

import {
  LONGEST_S,
  SHORTEST_S,
  firstView,
  fit,
  following,
  moved,
  shareOf,
  spread,
  ticks,
  timeAt,
  within,
  zoomed,
} from "../../../static/viewer/time-axis.js";

const HOUR_S = 3_600;

test("a short recording is shown whole, a long one from its beginning", () => {
  assert.deepEqual(firstView(30), { fromS: 0, toS: 30 });
  assert.deepEqual(firstView(HOUR_S), { fromS: 0, toS: 120 });
});

test("a view never leaves the recording and never shows more than can be drawn", () => {
  assert.deepEqual(fit({ fromS: -5, toS: 5 }, 30), { fromS: 0, toS: 10 });
  assert.deepEqual(fit({ fromS: 25, toS: 35 }, 30), { fromS: 20, toS: 30 });
  assert.deepEqual(fit({ fromS: 0, toS: HOUR_S }, HOUR_S), { fromS: 0, toS: LONGEST_S });
  assert.deepEqual(fit({ fromS: 0, toS: 1 }, 1), { fromS: 0, toS: SHORTEST_S });
});

test("zooming keeps the moment under the playhead where it is", () => {
  const before = { fromS: 100, toS: 200 };
  const after = zoomed(before, 0.5, 125, HOUR_S);
  assert.ok(Math.abs(shareOf(before, 125) - shareOf(after, 125)) < 1e-9);
  assert.equal(after.toS - after.fromS, 50);
});

test("moving sideways keeps the span and stops at the ends", () => {
  assert.deepEqual(moved({ fromS: 100, toS: 200 }, 0.5, HOUR_S), { fromS: 150, toS: 250 });
  assert.deepEqual(moved({ fromS: 10, toS: 110 }, -1, HOUR_S), { fromS: 0, toS: 100 });
});

test("time and share are each other's inverse", () => {
  const view = { fromS: 12, toS: 42 };
  for (const atS of [12, 13.7, 42]) assert.ok(Math.abs(timeAt(view, shareOf(view, atS)) - atS) < 1e-9);
});

test("the view follows the playhead only when it has to", () => {
  const view = { fromS: 0, toS: 100 };
  assert.equal(following(view, 50, HOUR_S), view);
  assert.equal(following(view, 95, HOUR_S), view);
  const turned = following(view, 95, HOUR_S, true);
  assert.ok(turned.fromS > 80 && turned.fromS <= 95);
  const back = following({ fromS: 500, toS: 600 }, 3, HOUR_S);
  assert.ok(back.fromS <= 3 && back.toS >= 3);
  const last = { fromS: 20, toS: 30 };
  assert.equal(following(last, 29.9, 30, true), last);
});

test("marks stand on round times and never too close", () => {
  assert.deepEqual(ticks({ fromS: 0, toS: 30 }, 7), [0, 5, 10, 15, 20, 25, 30]);
  assert.deepEqual(ticks({ fromS: 3, toS: 8 }, 5), [3, 4, 5, 6, 7, 8].slice(0, 6));
  assert.ok(ticks({ fromS: 0, toS: 300 }, 4).length <= 6);
});

test("only what can be seen is drawn", () => {
  const list = Array.from({ length: 1_000 }, (_, index) => ({ startS: index, endS: index + 1 }));
  const seen = within(list, { fromS: 100.5, toS: 103.5 });
  assert.deepEqual(
    seen.map(({ startS }) => startS),
    [100, 101, 102, 103],
  );
});

test("there are never more small pictures than places, and none twice", () => {
  const pictures = Array.from({ length: 1_800 }, (_, atS) => ({ atS }));
  const shown = spread(pictures, { fromS: 0, toS: 300 }, 9);
  assert.equal(shown.length, 9);
  assert.equal(new Set(shown.map(({ entry }) => entry)).size, 9);
  assert.equal(spread(pictures.slice(0, 2), { fromS: 0, toS: 4 }, 9).length, 2);
});
