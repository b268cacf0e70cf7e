// @ts-check
/** Home. */

import { mountAppCards } from "../home/app-cards.js";
import { firstFacts, watchDevices } from "../home/device-facts.js";
import { mountHero } from "../home/hero.js";
import { mountModelNote } from "../home/model-note.js";
import { expectedWaitS, readinessLines } from "../home/readiness.js";
import { mountReadinessCard } from "../home/readiness-card.js";
import { mountRecentList } from "../home/recent-list.js";
import { getJson } from "../shared/api.js";
import { byId, setText } from "../shared/dom.js";
import { formatClock } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { startPage } from "../shared/page.js";

/** @typedef {import("../home/readiness.js").Report} Report */
/** @typedef {import("../shared/app-nav.js").App} App */

const page = await startPage({ titleKey: "home.page" });

const place = (/** @type {string} */ id) => byId(id, HTMLElement);
const hero = mountHero({ buttons: place("hero-buttons"), summary: place("hero-summary") });
const cards = mountAppCards({
  cards: place("apps"),
  table: place("compare"),
  comparison: place("comparison"),
  empty: place("apps-empty"),
});
const card = mountReadinessCard(place("readiness"), place("readiness-news"));
const note = mountModelNote(place("model-note"));
mountRecentList({ section: place("recent"), list: place("recent-list"), clear: place("recent-clear") }, localStore());

const known = {
  browser: firstFacts(),
  report: /** @type {Report | null} */ (null),
  waitS: /** @type {number | null} */ (null),
  apps: "",
};

function draw() {
  const lines = readinessLines(known.browser, known.report, known.waitS, formatClock);
  card.update(lines);
  hero.setLines(lines);
  note.update(known.report?.status ?? null);
}

/** @param {Report} report */
async function showStatus(report) {
  known.waitS = await waitOf(report);
  known.report = report;
  draw();
  if (report.isReached) await refreshApps();
}

/**
 * @param {Report} report
 * @returns {Promise<number | null>}
 */
async function waitOf({ status }) {
  if (status === null || (status.queue_length === 0 && status.free_slots > 0)) return null;
  /** @type {{items: {estimated_wait_s: number}[], running_tasks: {estimated_remaining_s: number | null}[]} | null} */
  const queue = await getJson("/api/queue").catch(() => null);
  return queue && expectedWaitS(status, queue.items, queue.running_tasks);
}

/** Cards follow the switches of the administrator. */
async function refreshApps() {
  /** @type {{apps: App[]} | null} */
  const answer = await getJson("/api/apps").catch(() => null);
  if (answer) showApps(answer.apps);
}

/** @param {App[]} apps */
function showApps(apps) {
  const seen = JSON.stringify(apps);
  if (seen === known.apps) return;
  known.apps = seen;
  hero.setApps(apps);
  cards.update(apps);
}

/** @returns {Storage | null} */
function localStore() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

const drawRecording = () => {
  const isKnown = page.defaults !== null;
  const key = page.defaults?.recording_enabled ? "home.recorded" : "home.not_recorded";
  setText(place("recording-note"), isKnown ? t(key) : "");
};
onLangChange(drawRecording);
drawRecording();
onLangChange(draw);

const apps = await page.apps;
if (page.defaults === null && apps.length === 0) hero.setApps(null);
else showApps(apps);
draw();
await watchDevices((facts) => {
  known.browser = facts;
  draw();
});
page.onStatus((report) => void showStatus(report));
page.ready();
