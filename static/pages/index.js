/** Home. */

import { expectedWaitS, firstObstacle, readinessLines } from "../home/readiness.js";
import { getJson } from "../shared/api.js";
import { isKnownApp } from "../shared/apps.js";
import { byId, on, render, setText, toast } from "../shared/lit.js";
import { formatClock, onLangChange, t } from "../shared/texts.js";
import { loadApps, startPage } from "../shared/page.js";
import { clearRecent, listRecent } from "../shared/memory.js";
import * as view from "../home/home-view.js";

/** @import { StatusReport } from "../shared/texts.js" */
/** @import { App } from "../shared/apps.js" */

const page = await startPage({ titleKey: "home.page" });

const known = {
  browser: view.firstFacts(),
  report: /** @type {StatusReport | null} */ (null),
  waitS: /** @type {number | null} */ (null),
  apps: /** @type {App[] | null} */ (null),
};
/** Last announced state of each line. @type {Map<string, string>} */ const reported = new Map();

function draw() {
  drawReadiness();
  drawApps();
  const status = known.report?.status ?? null;
  const note = byId("model-note");
  note.hidden = !status?.model?.is_demonstration;
  if (status && !note.hidden) render(view.demonstrationNote(status, known.apps ?? []), note);
  drawRecent();
  const key = page.defaults?.recording_enabled ? "home.recorded" : "home.not_recorded";
  setText(byId("recording-note"), page.defaults ? t(key) : "");
}

function drawReadiness() {
  const lines = readinessLines(known.browser, known.report, known.waitS, formatClock);
  render(view.readiness(lines), byId("readiness"));
  const summary = byId("hero-summary");
  summary.dataset.kind = firstObstacle(lines)?.state ?? "good";
  render(view.heroSummary(lines), summary);
  // The first result of a line is not announced as a change.
  const changed = lines.filter(({ id, state }) => ![undefined, "asking", state].includes(reported.get(id)));
  for (const { id, state } of lines) reported.set(id, state);
  if (changed.length > 0) setText(byId("readiness-news"), view.readinessNews(changed));
}

function drawApps() {
  const apps = known.apps ?? [];
  const compared = apps.filter(({ app_id: id }) => isKnownApp(id));
  render(view.heroButtons(known.apps), byId("hero-buttons"));
  render(view.appCards(apps), byId("apps"));
  render(view.comparison(compared), byId("compare"));
  byId("comparison").hidden = compared.length === 0;
  byId("apps-empty").hidden = apps.length > 0;
}

function drawRecent() {
  const sessions = listRecent();
  byId("recent").hidden = sessions.length === 0;
  render(view.recentCards(sessions), byId("recent-list"));
}

async function showStatus(/** @type {StatusReport} */ report) {
  const isFirst = known.report === null && known.apps !== null; // the apps have just been loaded
  known.waitS = await waitOf(report);
  known.report = report;
  draw();
  if (isFirst || !report.isReached) return;
  known.apps = (await loadApps()) ?? known.apps; // an administrator may have changed them
  draw();
}

async function waitOf(/** @type {StatusReport} */ { status }) {
  if (status === null || (status.queue_length === 0 && status.free_slots > 0)) return null;
  const queue = await getJson("/api/queue").catch(() => null);
  return queue && expectedWaitS(status, queue.items, queue.running_tasks);
}

on(byId("recent-clear"), "click", () => {
  clearRecent();
  drawRecent();
  toast(t("home.recent_cleared"));
});
// Another window may have added a conversation.
on(window, "storage", drawRecent);
on(window, "pageshow", drawRecent);
onLangChange(draw);

known.apps = await page.apps;
draw();
await view.watchDevices(known.browser, (facts) => {
  known.browser = facts;
  draw();
});
page.onStatus((report) => void showStatus(report));
page.ready();
