// @ts-check
/** Home. */

import { expectedWaitS, firstObstacle, inOrder, isKnownApp, readinessLines } from "../home/readiness.js";
import { firstFacts, watchDevices } from "../home/home-view.js";
import * as view from "../home/home-view.js";
import { getJson } from "../shared/api.js";
import { byId, on, setText } from "../shared/dom.js";
import { formatClock } from "../shared/formats.js";
import { onLangChange, t } from "../shared/texts.js";
import { render } from "../shared/lit.js";
import { startPage } from "../shared/page.js";
import { clearRecent, listRecent } from "../shared/recent-sessions.js";
import { toast } from "../shared/notice.js";

/** @import { Report } from "../home/readiness.js" */
/** @import { App } from "../shared/page.js" */

const page = await startPage({ titleKey: "home.page" });
const place = (/** @type {string} */ id) => byId(id, HTMLElement);

const known = {
  browser: firstFacts(),
  report: /** @type {Report | null} */ (null),
  waitS: /** @type {number | null} */ (null),
  apps: /** @type {App[] | null} */ (null),
};
/** What was last said of each line. @type {Map<string, string>} */
const reported = new Map();

function draw() {
  drawReadiness();
  drawApps();
  const status = known.report?.status ?? null;
  const note = place("model-note");
  note.hidden = !status?.model?.is_demonstration;
  if (status && !note.hidden) render(view.modelNote(status), note);
  drawRecent();
  const key = page.defaults?.recording_enabled ? "home.recorded" : "home.not_recorded";
  setText(place("recording-note"), page.defaults ? t(key) : "");
}

function drawReadiness() {
  const lines = readinessLines(known.browser, known.report, known.waitS, formatClock);
  render(view.readiness(lines), place("readiness"));
  const summary = place("hero-summary");
  summary.dataset.kind = firstObstacle(lines)?.state ?? "good";
  render(view.heroSummary(lines), summary);
  // The first answer to a question is no change, whichever of the questions are still open.
  const changed = lines.filter(({ id, state }) => ![undefined, "asking", state].includes(reported.get(id)));
  for (const { id, state } of lines) reported.set(id, state);
  if (changed.length > 0) setText(place("readiness-news"), view.readinessNews(changed));
}

function drawApps() {
  const apps = inOrder(known.apps ?? []);
  const compared = apps.filter(({ app_id: id }) => isKnownApp(id));
  render(view.heroButtons(known.apps), place("hero-buttons"));
  render(view.appCards(apps), place("apps"));
  render(view.comparison(compared), place("compare"));
  place("comparison").hidden = compared.length === 0;
  place("apps-empty").hidden = apps.length > 0;
}

function drawRecent() {
  const sessions = listRecent();
  place("recent").hidden = sessions.length === 0;
  render(view.recentCards(sessions), place("recent-list"));
}

/** @param {Report} report */
async function showStatus(report) {
  known.waitS = await waitOf(report);
  known.report = report;
  draw();
  if (!report.isReached) return;
  // Cards follow the switches of the administrator.
  /** @type {{apps: App[]} | null} */
  const answer = await getJson("/api/apps").catch(() => null);
  if (answer) known.apps = answer.apps;
  drawApps();
}

/** @param {Report} report @returns {Promise<number | null>} */
async function waitOf({ status }) {
  if (status === null || (status.queue_length === 0 && status.free_slots > 0)) return null;
  /** @type {{items: {estimated_wait_s: number}[], running_tasks: {estimated_remaining_s: number | null}[]} | null} */
  const queue = await getJson("/api/queue").catch(() => null);
  return queue && expectedWaitS(status, queue.items, queue.running_tasks);
}

on(place("recent-clear"), "click", () => {
  clearRecent();
  drawRecent();
  toast(t("home.recent_cleared"));
});
// Another window may have added one.
on(window, "storage", drawRecent);
on(window, "pageshow", drawRecent);
onLangChange(draw);

const apps = await page.apps;
if (page.defaults !== null || apps.length > 0) known.apps = apps;
draw();
await watchDevices((facts) => {
  known.browser = facts;
  draw();
});
page.onStatus((report) => void showStatus(report));
page.ready();
