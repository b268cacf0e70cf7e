// @ts-check
/** What every page does first: words, bar, foot, title, and the look at how the server is. */

import { getJson } from "./api.js";
import { byId, find } from "./dom.js";
import { initLanguage, languageNames, serverDefaults, setLang } from "./i18n.js";
import { getLang, onLangChange, t } from "./texts.js";
import { html, icon, iconButton, mountView, nothing } from "./lit.js";
import { remember } from "./memory.js";
import { describeHealth } from "./formats.js";

// Asks the server how it is, every few seconds while the page is seen.

const INTERVAL_MS = 10_000;
/** A page is shown without a report that takes longer. */
const FIRST_REPORT_MS = 500;

/** @typedef {{status: Http.ServiceStatus | null, isReached: boolean}} StatusReport */

const askStatus = () =>
  getJson("/status").then(
    (status) => ({ status, isReached: true }),
    () => ({ status: null, isReached: false }),
  );

// Loads the style sheet of the Chinese font that ships with the pages once Chinese text appears. The browser then
// fetches only the parts whose characters no font of the system has.

const CHINESE = /\p{Script=Han}/u;
const STYLE_SHEET = "/static/vendor/noto-sans-sc/index.css";

/** @param {Node} node */
function textOf(node) {
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
  // Chromium keeps the shapes of text in flex items and table cells when a font arrives late. A new
  // value of this feature, which no font has, makes it shape all text again.
  let count = 0;
  document.fonts.addEventListener("loadingdone", () => {
    count += 1;
    document.body.style.fontFeatureSettings = `"load" ${count}`;
  });
  observer.observe(root, { subtree: true, childList: true, characterData: true });
}

const PRODUCT = "MiniCPM-o live";
const READY_MARK = "page-interactive";

/**
 * @typedef {Object} Page
 * @property {Http.FrontendDefaults | null} defaults null if the server was not reached
 * @property {Promise<App[]>} apps
 * @property {(listener: (report: StatusReport) => void) => void} onStatus
 *   called at once with the latest report, then with every new one
 * @property {() => Promise<void>} refreshStatus
 * @property {() => void} show show what is there; `ready` does so as well
 * @property {() => void} ready say that the page can be used
 */

/** @param {{titleKey: string, statusIntervalMs?: number}} options @returns {Promise<Page>} */
export async function startPage({ titleKey, statusIntervalMs = INTERVAL_MS }) {
  watchForChinese();
  const apps = loadApps();
  const firstReport = askStatus();
  const defaults = await serverDefaults;
  await initLanguage();
  // What comes before the first paint moves nothing when it comes.
  await Promise.race([Promise.all([apps, firstReport]), new Promise((done) => setTimeout(done, FIRST_REPORT_MS))]);

  const nav = mountAppNav(byId("nav", HTMLElement), apps);
  const footer = byId("footer", HTMLElement);
  footer.classList.add("footer");
  mountView(footer, () => html`<span>${t("footer.about")}</span><a href="/api/docs">${t("footer.api")}</a>`);
  const showTitle = () => {
    document.title = `${t(titleKey)} · ${PRODUCT}`;
  };
  onLangChange(showTitle);
  showTitle();

  /** @type {Set<(report: StatusReport) => void>} */
  const listeners = new Set([nav.showStatus]);
  /** @type {StatusReport | null} */
  let latest = null;
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
  await new Promise((done) => setTimeout(done)); // so that the page's own parts are another task
  const show = () => void (document.documentElement.dataset.shown = "true");
  return {
    defaults,
    apps,
    refreshStatus,
    onStatus(listener) {
      listeners.add(listener);
      if (latest) listener(latest);
    },
    show,
    ready() {
      show();
      performance.mark(READY_MARK);
      document.documentElement.dataset.ready = "true";
    },
  };
}

// The bar on top: the pages that are switched on, how the server is, language and theme.

/** @typedef {Http.AppInfo} App */

const STORAGE_KEY = "minicpmo_theme";
const THEMES = /** @type {const} */ (["auto", "light", "dark"]);
const THEME_ICONS = { auto: "contrast", light: "sun", dark: "moon" };
/** @typedef {typeof THEMES[number]} Theme */

/** @returns {Theme} what was chosen; auto: as the system wishes */
function getTheme() {
  const chosen = document.documentElement.dataset.theme;
  return THEMES.find((theme) => theme === chosen) ?? "auto";
}

/** @param {Theme} theme */
function setTheme(theme) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  remember(STORAGE_KEY, theme);
  root.dispatchEvent(new Event("themechange"));
}

/** @returns {Promise<App[]>} the apps that are switched on; none if the server is not reached */
async function loadApps() {
  /** @type {{apps: App[]}} */
  const { apps } = await getJson("/api/apps").catch(() => ({ apps: [] }));
  return apps;
}

/** @param {HTMLElement} el @param {Promise<App[]>} apps @returns {{showStatus: (report: StatusReport) => void}} */
function mountAppNav(el, apps) {
  const state = { apps: /** @type {App[]} */ ([]), isOpen: false, report: /** @type {StatusReport | null} */ (null) };
  const open = (/** @type {boolean} */ isOpen) => {
    state.isOpen = isOpen;
    draw();
  };
  const nextTheme = () => {
    setTheme(THEMES[(THEMES.indexOf(getTheme()) + 1) % THEMES.length]);
    draw();
  };
  /** @param {KeyboardEvent} event */
  const onKey = ({ key }) => {
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
          <button
            type="button"
            class="button button-quiet button-icon nav-menu"
            aria-controls="nav-links"
            aria-expanded=${String(state.isOpen)}
            aria-label=${t("nav.menu")}
            @click=${() => open(!state.isOpen)}
          >
            ${icon("menu")}
          </button>
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
    state.apps = list;
    draw();
  });
  return {
    showStatus(report) {
      state.report = report;
      draw();
    },
  };
}

/** @param {App[]} apps */
const links = (apps) =>
  [
    ...apps.map(({ app_id: id, route, name }) => ({ route, text: appTitle(id, name) })),
    { route: "/check", text: t("nav.check") },
    { route: "/admin", text: t("nav.admin") },
  ].map(
    ({ route, text }) =>
      html`<li><a href=${route} aria-current=${location.pathname === route ? "page" : nothing}>${text}</a></li>`,
  );

/** The server's name where there is none in the language of the page. @param {string} appId @param {string} name */
export function appTitle(appId, name) {
  const key = `app.${appId}.title`;
  const text = t(key);
  return text === key ? name : text;
}

function languageButton() {
  const names = languageNames();
  const codes = Object.keys(names);
  const next = codes[(codes.indexOf(getLang()) + 1) % codes.length];
  // Drawn, so that an English page needs no Chinese font for one word.
  const sign = next === "zh" ? icon("chinese") : names[next];
  return html`<button
    type="button"
    class="button button-quiet"
    id="language"
    ?hidden=${codes.length < 2}
    lang=${next}
    aria-label=${names[next]}
    title=${names[next]}
    @click=${() => void setLang(next)}
  >
    ${sign}
  </button>`;
}

/** The small light: is the server there, is somebody free, how many wait. @param {StatusReport | null} report */
function healthBadge(report) {
  const { kind, text } = report ? describeHealth(report) : { kind: "", text: t("health.asking") };
  return html`<span class="badge health-badge" role="status" data-kind=${kind} title=${text}
    ><span class="dot"></span><span class="health-text">${text}</span></span
  >`;
}
