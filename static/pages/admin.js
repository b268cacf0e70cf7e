/** Administration. */

import { adminApi, isRefusal, startRefreshing } from "../admin/admin-api.js";
import { makeApps, makeDurations, makeOverview } from "../admin/overview.js";
import { makeAudit, makeLogs } from "../admin/logs.js";
import { makeConversations, makeQueue, makeWorkers } from "../admin/workers.js";
import { mountLogin, mountSectionNav } from "../admin/words.js";
import { makePresets, makeVoices } from "../admin/voices.js";
import { makeRecordings } from "../admin/recordings.js";
import { getJson, sendJson } from "../shared/api.js";
import { byId, html, mountNotice, on, render, setText, toast } from "../shared/lit.js";
import { onLangChange, t, tn } from "../shared/texts.js";
import { pageVisibility } from "../shared/page-visibility.js";
import { startPage } from "../shared/page.js";
import { linkedToken } from "../admin/admin-facts.js";
import { clock, failureText } from "../admin/admin-texts.js";

/** @import { AdminApi } from "../admin/admin-api.js" */
/** @import { SectionEntry } from "../admin/words.js" */
/** @import { Page } from "../shared/page.js" */

/**
 * @typedef {Object} Context what a section works with
 * @property {AdminApi} api
 * @property {Page} page
 * @property {HTMLElement} el container of the section's view
 * @property {() => void} draw redraws it
 * @property {() => Promise<void>} after refreshes it and the badges; errors are reported by the next refresh
 *
 * @typedef {Object} Section
 * @property {() => unknown} view template of the current data
 * @property {() => Promise<void>} refresh
 * @property {number} [pauseMs] between two refreshes
 * @property {() => void} [onHide]
 *
 * @typedef {SectionEntry & {make: (context: Context) => Section}} Entry of the navigation
 */

const PAUSE_MS = 5_000;

/** @type {Entry[]} */ const SECTIONS = [
  { id: "overview", icon: "gauge", titleKey: "admin.overview", make: makeOverview },
  { id: "workers", icon: "server", titleKey: "admin.workers", make: makeWorkers },
  { id: "queue", icon: "people", titleKey: "admin.queue", make: makeQueue },
  { id: "conversations", icon: "chat", titleKey: "admin.conversations", make: makeConversations },
  { id: "durations", icon: "clock", titleKey: "admin.durations", make: makeDurations },
  { id: "apps", icon: "power", titleKey: "admin.apps", make: makeApps },
  { id: "voices", icon: "speaker", titleKey: "admin.voices", make: makeVoices },
  { id: "presets", icon: "sparkle", titleKey: "admin.presets", make: makePresets },
  { id: "recordings", icon: "film", titleKey: "admin.recordings", make: makeRecordings },
  { id: "logs", icon: "file", titleKey: "admin.logs", make: makeLogs },
  { id: "audit", icon: "edit", titleKey: "admin.audit", make: makeAudit },
];

const linked = takeLinkedToken();
const page = await startPage({ titleKey: "admin.title" });
const board = byId("board");
const signOut = byId("sign-out", HTMLButtonElement);
const freshness = byId("freshness");
const place = byId("notice");
const notice = mountNotice(place);
const showLogin = mountLogin(byId("login"), { signIn, retry: () => void enter() });
const api = adminApi(() => void leave());

/** @type {Map<Entry, Section>} */ const mounted = new Map();
const desk = {
  isIn: false,
  current: SECTIONS[0],
  refreshNow: async () => {}, // until the first section is shown
  failure: /** @type {unknown} */ (null),
};

async function enter() {
  /** @type {Http.AdminState} */ let state;
  try {
    state = await getJson("/api/admin/state");
  } catch (error) {
    showLogin({ kind: "failure", error });
    return;
  }
  if (!state.is_admin) return showLogin({ kind: "token", isSignedOut: false });
  showLogin(null);
  signOut.hidden = !state.needs_token;
  board.hidden = false;
  nav.reveal();
  desk.isIn = true;
  await desk.refreshNow();
}

/** Reads the token of the link that the server prints at start, and removes it from the address bar. */
function takeLinkedToken() {
  const token = linkedToken(location.hash);
  if (token !== "") history.replaceState(null, "", location.pathname);
  return token;
}

async function signIn(/** @type {string} */ token) {
  await sendJson("POST", "/api/admin/login", { token });
  await enter();
}

/** Called when the server no longer accepts the login. */
async function leave() {
  if (!desk.isIn) return;
  desk.isIn = false;
  mounted.get(desk.current)?.onHide?.();
  board.hidden = true;
  signOut.hidden = true;
  setText(freshness, "");
  showLogin({ kind: "token", isSignedOut: true });
}

async function show(/** @type {Entry} */ entry) {
  mounted.get(desk.current)?.onHide?.();
  desk.current = entry;
  for (const each of SECTIONS) byId(`section-${each.id}`).hidden = each !== entry;
  notice.clear();
  await desk.refreshNow();
}

function sectionOf(/** @type {Entry} */ entry) {
  const known = mounted.get(entry);
  if (known) return known;
  const redraw = () => draw(entry);
  const after = async () => {
    await section.refresh().then(redraw, () => {});
    void page.refreshStatus();
  };
  const section = entry.make({ api, page, el: byId(`section-${entry.id}`), draw: redraw, after });
  mounted.set(entry, section);
  redraw();
  return section;
}

function draw(/** @type {Entry} */ entry) {
  const { id, titleKey } = entry;
  const view = html`<h2 id="title-${id}" tabindex="-1">${t(titleKey)}</h2>
    ${mounted.get(entry)?.view()}`;
  render(view, byId(`section-${id}`));
}

/** Refreshes the current section; never throws. */
async function refresh() {
  if (!desk.isIn) return;
  const { current } = desk;
  try {
    await sectionOf(current).refresh();
    draw(current);
    desk.failure = null;
  } catch (error) {
    desk.failure = error;
  }
  if (desk.isIn && current === desk.current) report();
}

function report() {
  if (desk.failure === null) {
    notice.clear();
    setText(freshness, t("admin.fresh", { time: clock(new Date().toISOString()) }));
  } else if (!isRefusal(desk.failure)) {
    console.info(desk.failure);
    setText(freshness, failureText(desk.failure, desk.current.id));
    // Shown once, not with every attempt.
    const problem = /** @type {Error & {code?: string}} */ (desk.failure);
    if (place.dataset.code !== (problem.code ?? "internal")) notice.show(problem, { kind: "caution" });
  }
}

const nav = mountSectionNav(byId("sections"), SECTIONS, (entry) => void show(entry));
desk.refreshNow = startRefreshing({
  work: refresh,
  pauseMs: () => mounted.get(desk.current)?.pauseMs ?? PAUSE_MS,
  visibility: pageVisibility(),
});
on(signOut, "click", async () => {
  try {
    await sendJson("POST", "/api/admin/logout");
    toast(t("admin.logged_out"));
    await leave();
  } catch (error) {
    toast(failureText(error, "login"));
  }
});
page.onStatus(({ status }) => {
  const broken = (status?.error_workers ?? 0) + (status?.offline_workers ?? 0);
  const waiting = status?.queue_length ?? 0;
  nav.setBadge("workers", broken > 0 ? { count: broken, kind: "bad", label: tn("admin.broken", broken) } : null);
  nav.setBadge("queue", waiting > 0 ? { count: waiting, kind: "caution", label: tn("admin.waiting", waiting) } : null);
});
onLangChange(() => {
  for (const entry of mounted.keys()) draw(entry);
  void desk.refreshNow();
});
page.show(); // hidden elements cannot be focused
if (linked === "") await enter();
else await signIn(linked).catch((error) => showLogin({ kind: "token", isSignedOut: false, error }));
page.ready();
