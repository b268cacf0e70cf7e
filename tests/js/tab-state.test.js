import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { tabStateOf } from "../../static/duplex/lib/call-state.js";
import { claimTab } from "../../static/shared/tab-state.js";

/** @param {string | null} icon */
function fakePage(icon) {
  const link = {
    href: icon,
    getAttribute: () => link.href,
    setAttribute: (/** @type {string} */ _, /** @type {string} */ value) => void (link.href = value),
  };
  let made = 0;
  const page = {
    title: "Talk",
    querySelector: () => (icon === null ? null : link),
    createElement: () => ((made += 1), link),
    head: { append() {} },
  };
  return { page, link, made: () => made, asDocument: /** @type {Document} */ (/** @type {unknown} */ (page)) };
}

test("title and icon follow the state and come back", () => {
  const { page, link, asDocument } = fakePage("own.svg");
  const tab = claimTab(asDocument);
  tab.show("queued", "(2) ");
  assert.equal(page.title, "(2) Talk");
  assert.match(String(link.href), /\/shared\/icons\/favicon-queued\.svg$/);
  tab.show("speaking");
  assert.equal(page.title, "▶ Talk");
  tab.setTitle("对话");
  assert.equal(page.title, "▶ 对话");
  tab.restore();
  assert.deepEqual([page.title, link.href], ["对话", "own.svg"]);
});

test("a page without an icon gets one", () => {
  const { link, made, asDocument } = fakePage(null);
  claimTab(asDocument).show("listening");
  assert.equal(made(), 1);
  assert.match(String(link.href), /favicon-listening/);
});

test("each state has its icon", () => {
  for (const state of ["idle", "queued", "listening", "speaking", "paused", "error"]) {
    const path = new URL(`../../static/shared/icons/favicon-${state}.svg`, import.meta.url);
    assert.match(readFileSync(path, "utf8"), /^<svg /);
  }
});

test("a session's state has its tab", () => {
  /** @param {string} phase @param {string} [activity] @param {{isByUser: boolean}} [end] */
  const of = (phase, activity = "none", end) => tabStateOf({ phase, activity, end });
  assert.deepEqual(
    ["idle", "connecting", "queued", "preparing", "paused", "stopping"].map((phase) => of(phase)),
    ["idle", "queued", "queued", "queued", "paused", "idle"],
  );
  assert.equal(of("running", "speaking"), "speaking");
  assert.equal(of("running", "interrupted"), "listening");
  assert.equal(of("pausing", "speaking"), "speaking");
  assert.equal(of("ended", "none", { isByUser: true }), "idle");
  assert.equal(of("ended", "none", { isByUser: false }), "error");
});
