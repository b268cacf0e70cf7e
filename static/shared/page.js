/** Start-up of every page: texts, navigation bar, footer, title and server status. */

import { getJson } from "./api.js";
import { appTitle, inOrder } from "./apps.js";
import { nextTask } from "./async.js";
import { byId, find, html, icon, iconButton, mountView, nothing, toastProblem } from "./lit.js";
import { initLanguage, languageNames, serverDefaults, setLang } from "./i18n.js";
import { describeHealth, getLang, onLangChange, t } from "./texts.js";
import { remember } from "./memory.js";

/** @import { App } from "./apps.js" */
/** @import { StatusReport } from "./texts.js" */

// Polls the server status while the page is visible.

const INTERVAL_MS = 10_000;
const FIRST_REPORT_MS = 500; // how long the first paint waits for the first report

const askStatus = () =>
  getJson("/status").then(
    (status) => ({ status, isReached: true }),
    () => ({ status: null, isReached: false }),
  );

// Loads the style sheet of the Chinese font that ships with the pages once Chinese text appears. The browser then
// downloads only the subsets that no system font covers.

const CHINESE = /\p{Script=Han}/u;
const STYLE_SHEET = "/static/vendor/noto-sans-sc/index.css";

function textOf(/** @type {Node} */ node) {
  if (!(node instanceof Element)) return node.textContent ?? "";
  const fields = [...node.querySelectorAll("textarea")].map((field) => field.value);
  return [node.textContent, ...fields].join("");
}

function watchForChinese() {
  const root = document.documentElement;
  const observer = new MutationObserver((changes) => {
    const nodes = changes.flatMap(({ target, addedNodes, type }) => (type === "characterData" ? [target] : [...addedNodes]));
    if (!nodes.some((node) => CHINESE.test(textOf(node)))) return;
    observer.disconnect();
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = STYLE_SHEET;
    document.head.append(link);
  });
  // Chromium does not reshape text in flex items and table cells when a font arrives late. Changing a
  // font feature that no font has forces it to.
  let count = 0;
  document.fonts.addEventListener("loadingdone", () => {
    count += 1;
    document.body.style.fontFeatureSettings = `"load" ${count}`;
  });
  observer.observe(root, { subtree: true, childList: true, characterData: true });
}

const PRODUCT = "MiniCPM-o live";
const READY_MARK = "page-interactive";

/** @typedef {Awaited<ReturnType<typeof startPage>>} Page */

/** @param {{titleKey: string, statusIntervalMs?: number}} options */
export async function startPage({ titleKey, statusIntervalMs = INTERVAL_MS }) {
  watchForChinese();
  const apps = loadApps();
  const firstReport = askStatus();
  const defaults = await serverDefaults;
  await initLanguage();
  // Content that arrives before the first paint causes no layout shift.
  await Promise.race([Promise.all([apps, firstReport]), new Promise((done) => setTimeout(done, FIRST_REPORT_MS))]);

  const showStatus = mountAppNav(byId("nav"), apps);
  const footer = byId("footer");
  footer.classList.add("footer");
  mountView(footer, () => html`<span>${t("footer.about")}</span><a href="/api/docs">${t("footer.api")}</a>`);
  const showTitle = () => {
    document.title = `${t(titleKey)} · ${PRODUCT}`;
  };
  onLangChange(showTitle);
  showTitle();

  /** @type {Set<(report: StatusReport) => void>} */ const listeners = new Set([showStatus]);
  /** @type {StatusReport | null} */ let latest = null;
  const notify = (/** @type {StatusReport} */ report) => {
    latest = report;
    for (const listener of listeners) listener(report);
  };
  const refreshStatus = () => askStatus().then(notify);
  const refreshIfSeen = () => {
    if (document.visibilityState === "visible") void refreshStatus();
  };
  void firstReport.then(notify);
  setInterval(refreshIfSeen, statusIntervalMs);
  document.addEventListener("visibilitychange", refreshIfSeen);
  await nextTask();
  const show = () => void (document.documentElement.dataset.shown = "true");
  return {
    defaults, // null if the server could not be reached
    apps,
    refreshStatus,
    /** @param {(report: StatusReport) => void} listener called at once with the latest report, then with every new one */
    onStatus(listener) {
      listeners.add(listener);
      if (latest) listener(latest);
    },
    show, // reveals the page; `ready` does so as well
    /** Marks the page as usable. */
    ready() {
      show();
      performance.mark(READY_MARK);
      document.documentElement.dataset.ready = "true";
    },
  };
}

// Navigation bar: enabled apps, server status, language and theme.

const STORAGE_KEY = "minicpmo_theme";
const THEMES = /** @type {const} */ (["auto", "light", "dark"]);
const THEME_ICONS = { auto: "contrast", light: "sun", dark: "moon" };
/** @typedef {typeof THEMES[number]} Theme */

/** @returns {Theme} auto follows the system */
function getTheme() {
  const chosen = document.documentElement.dataset.theme;
  return THEMES.find((theme) => theme === chosen) ?? "auto";
}

/** @returns {Promise<App[] | null>} the enabled apps; null if the server cannot be reached */
export const loadApps = () =>
  getJson("/api/apps").then(
    ({ apps }) => inOrder(apps),
    () => null,
  );

/** @param {HTMLElement} el @param {Promise<App[] | null>} apps @returns {(report: StatusReport) => void} shows the status */
function mountAppNav(el, apps) {
  const state = { apps: /** @type {App[]} */ ([]), isOpen: false, report: /** @type {StatusReport | null} */ (null) };
  const open = (/** @type {boolean} */ isOpen) => {
    state.isOpen = isOpen;
    draw();
  };
  const nextTheme = () => {
    const root = document.documentElement;
    const theme = THEMES[(THEMES.indexOf(getTheme()) + 1) % THEMES.length];
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    remember(STORAGE_KEY, theme);
    root.dispatchEvent(new Event("themechange"));
    draw();
  };
  const onKey = (/** @type {KeyboardEvent} */ { key }) => {
    if (key !== "Escape" || !state.isOpen) return;
    open(false);
    find(el, ".nav-menu", HTMLButtonElement).focus();
  };
  el.classList.add("nav");
  const draw = mountView(
    el,
    () =>
      html`<nav aria-label=${t("nav.label")} @keydown=${onKey}>
        <div class="nav-inner">
          ${iconButton("menu", t("nav.menu"), () => open(!state.isOpen), {
            style: "button-quiet nav-menu",
            isExpanded: state.isOpen,
            controls: "nav-links",
          })}
          <a class="brand" href="/" aria-label=${t("nav.home")}>${icon("brand")}<span class="brand-name">MiniCPM-o live</span></a>
          <ul class="nav-links" id="nav-links" data-open=${String(state.isOpen)}>
            ${links(state.apps)}
          </ul>
          <div class="nav-tools">
            ${healthBadge(state.report)}${languageButton()}${iconButton(
              THEME_ICONS[getTheme()],
              t(`nav.theme_${getTheme()}`),
              nextTheme,
            )}
          </div>
        </div>
      </nav>`,
  );
  void apps.then((list) => {
    state.apps = list ?? [];
    draw();
  });
  return (report) => {
    state.report = report;
    draw();
  };
}

const links = (/** @type {App[]} */ apps) =>
  [
    ...apps.map(({ app_id: id, route, name }) => ({ route, text: appTitle(id, name) })),
    { route: "/check", text: t("nav.check") },
    { route: "/admin", text: t("nav.admin") },
  ].map(
    ({ route, text }) =>
      html`<li><a href=${route} aria-current=${location.pathname === route ? "page" : nothing}>${text}</a></li>`,
  );

function languageButton() {
  const names = languageNames();
  const codes = Object.keys(names);
  const next = codes[(codes.indexOf(getLang()) + 1) % codes.length];
  // An icon, so that an English page needs no Chinese font.
  const sign = next === "zh" ? icon("chinese") : names[next];
  return html`<button
    type="button"
    class="button button-quiet"
    id="language"
    ?hidden=${codes.length < 2}
    lang=${next}
    aria-label=${names[next]}
    title=${names[next]}
    @click=${() => setLang(next).catch(toastProblem)}
  >
    ${sign}
  </button>`;
}

/** Status indicator: server, free slots, queue. @param {StatusReport | null} report */
function healthBadge(report) {
  const { kind, text } = report ? describeHealth(report) : { kind: "", text: t("health.asking") };
  return html`<span class="badge health-badge" role="status" data-kind=${kind} title=${text}
    ><span class="dot"></span><span class="health-text">${text}</span></span
  >`;
}
