// @ts-check
/** Administration. */

import { adminApi, isRefusal } from "../admin/admin-api.js";
import * as apps from "../admin/apps.js";
import * as audit from "../admin/audit.js";
import * as conversations from "../admin/conversations.js";
import * as durations from "../admin/durations.js";
import { mountLoginCard } from "../admin/login-card.js";
import * as logs from "../admin/logs.js";
import * as overview from "../admin/overview.js";
import * as presets from "../admin/presets.js";
import * as queue from "../admin/queue.js";
import * as recordings from "../admin/recordings.js";
import { startRefreshing } from "../admin/refresher.js";
import { mountSectionNav } from "../admin/section-nav.js";
import * as voices from "../admin/voices.js";
import { failureText, said } from "../admin/words.js";
import * as workers from "../admin/workers.js";
import { getJson, sendJson } from "../shared/api.js";
import { byId, on, setText } from "../shared/dom.js";
import { onLangChange, t, tn } from "../shared/i18n.js";
import { mountNotice } from "../shared/notice.js";
import { pageVisibility } from "../shared/page-visibility.js";
import { startPage } from "../shared/page.js";
import { toast } from "../shared/toast.js";

/**
 * @typedef {Object} Context what a section works with
 * @property {import("../admin/admin-api.js").AdminApi} api
 * @property {import("../shared/page.js").Page} page
 *
 * @typedef {Object} Section
 * @property {() => Promise<void>} refresh
 * @property {number} [pauseMs] between two refreshes
 * @property {() => void} [onHide]
 *
 * @typedef {(el: HTMLElement, context: Context) => Section} MountSection
 */

const PAUSE_MS = 5_000;
const FIRST = "overview";
const TOKEN_MARK = "#token=";

/** @type {(import("../admin/section-nav.js").SectionEntry & {mount: MountSection})[]} */
const SECTIONS = [
  { id: FIRST, icon: "gauge", titleKey: "admin.overview", mount: overview.mountSection },
  { id: "workers", icon: "server", titleKey: "admin.workers", mount: workers.mountSection },
  { id: "queue", icon: "people", titleKey: "admin.queue", mount: queue.mountSection },
  { id: "conversations", icon: "chat", titleKey: "admin.conversations", mount: conversations.mountSection },
  { id: "durations", icon: "clock", titleKey: "admin.durations", mount: durations.mountSection },
  { id: "apps", icon: "power", titleKey: "admin.apps", mount: apps.mountSection },
  { id: "voices", icon: "speaker", titleKey: "admin.voices", mount: voices.mountSection },
  { id: "presets", icon: "sparkle", titleKey: "admin.presets", mount: presets.mountSection },
  { id: "recordings", icon: "film", titleKey: "admin.recordings", mount: recordings.mountSection },
  { id: "logs", icon: "file", titleKey: "admin.logs", mount: logs.mountSection },
  { id: "audit", icon: "edit", titleKey: "admin.audit", mount: audit.mountSection },
];

const linked = takeLinkedToken();
const page = await startPage({ titleKey: "admin.title" });
const board = byId("board", HTMLElement);
const signOut = byId("sign-out", HTMLButtonElement);
const freshness = byId("freshness", HTMLElement);
const place = byId("notice", HTMLElement);
const notice = mountNotice(place);
const login = mountLoginCard(byId("login", HTMLElement), { signIn, retry: () => void enter() });
const api = adminApi(() => void leave());

/** @type {Map<string, Section>} */
const mounted = new Map();
const desk = {
  isIn: false,
  current: "",
  refresher: /** @type {import("../admin/refresher.js").Refresher | null} */ (null),
  failure: /** @type {unknown} */ (null),
};

/** @returns {Promise<void>} */
async function enter() {
  /** @type {Http.AdminState} */
  let state;
  try {
    state = await getJson("/api/admin/state");
  } catch (error) {
    login.fail(error);
    return;
  }
  if (!state.is_admin) return login.askToken(false);
  login.hide();
  signOut.hidden = !state.needs_token;
  board.hidden = false;
  nav.reveal();
  desk.isIn = true;
  await desk.refresher?.now();
}

/** Takes the token of the link that the start of the server shows, and out of the address bar. */
function takeLinkedToken() {
  const token = location.hash.startsWith(TOKEN_MARK) ? decodeURIComponent(location.hash.slice(TOKEN_MARK.length)) : "";
  if (token !== "") history.replaceState(null, "", location.pathname);
  return token;
}

/** @param {string} token */
async function signIn(token) {
  await sendJson("POST", "/api/admin/login", { token });
  await enter();
}

/** The server does not take us for an administrator any more. */
async function leave() {
  if (!desk.isIn) return;
  desk.isIn = false;
  board.hidden = true;
  signOut.hidden = true;
  setText(freshness, "");
  login.askToken(true);
}

/** @param {string} id */
async function show(id) {
  mounted.get(desk.current)?.onHide?.();
  desk.current = id;
  for (const each of SECTIONS) byId(`section-${each.id}`, HTMLElement).hidden = each.id !== id;
  notice.clear();
  await desk.refresher?.now();
}

/** @param {string} id */
async function sectionOf(id) {
  const known = mounted.get(id);
  if (known) return known;
  const entry = SECTIONS.find((each) => each.id === id) ?? SECTIONS[0];
  const el = byId(`section-${id}`, HTMLElement);
  el.append(said("h2", entry.titleKey, { id: `title-${id}`, tabindex: -1 }));
  const section = entry.mount(el, { api, page });
  mounted.set(id, section);
  return section;
}

/** Brings the section that is shown up to date; never throws. */
async function refresh() {
  if (!desk.isIn) return;
  const id = desk.current;
  try {
    const section = await sectionOf(id);
    await section.refresh();
    desk.failure = null;
  } catch (error) {
    desk.failure = error;
  }
  if (desk.isIn && id === desk.current) report();
}

function report() {
  if (desk.failure === null) {
    notice.clear();
    const time = new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "medium" }).format(new Date());
    setText(freshness, t("admin.fresh", { time }));
  } else if (!isRefusal(desk.failure)) {
    console.info(desk.failure);
    setText(freshness, failureText(desk.failure, desk.current));
    // Said once, not with every try.
    const problem = /** @type {Error & {code?: string}} */ (desk.failure);
    if (place.dataset.code !== (problem.code ?? "internal")) notice.show(problem, { kind: "caution" });
  }
}

const nav = mountSectionNav(byId("sections", HTMLElement), SECTIONS, (id) => void show(id));
desk.refresher = startRefreshing({
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
onLangChange(() => void desk.refresher?.now());
if (linked === "") await enter();
else await signIn(linked).catch(() => login.askToken(false));
page.ready();
