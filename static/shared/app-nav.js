// @ts-check
/** The bar on top: the pages that are switched on, how the server is, language and theme. */

import { getJson } from "./api.js";
import { find } from "./dom.js";
import { getLang, languageNames, setLang, t, tn } from "./i18n.js";
import { html, icon, iconButton, mountView, nothing } from "./lit.js";

/** @typedef {import("./page.js").StatusReport} StatusReport */
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
  try {
    localStorage.setItem(STORAGE_KEY, theme);
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
  }
  root.dispatchEvent(new Event("themechange"));
}

/** @returns {Promise<App[]>} the apps that are switched on; none if the server is not reached */
export async function loadApps() {
  /** @type {{apps: App[]}} */
  const { apps } = await getJson("/api/apps").catch(() => ({ apps: [] }));
  return apps;
}

/**
 * @param {HTMLElement} el the page's header
 * @param {Promise<App[]>} apps
 * @returns {{showStatus: (report: StatusReport) => void}}
 */
export function mountAppNav(el, apps) {
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

/**
 * Returns an app's name in the language of the page, or the server's where there is none.
 *
 * @param {string} appId
 * @param {string} name
 */
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

/**
 * @param {StatusReport} report
 * @returns {{kind: "good" | "caution" | "bad", text: string}}
 */
function describeHealth({ status, isReached }) {
  if (!isReached || !status) return { kind: "bad", text: t("health.offline") };
  if (status.is_intake_paused) return { kind: "caution", text: t("health.paused") };
  if (status.queue_length > 0) return { kind: "caution", text: tn("health.waiting", status.queue_length) };
  if (status.free_slots > 0) return { kind: "good", text: t("health.ready") };
  if (status.loading_workers > 0) return { kind: "caution", text: t("health.loading") };
  if (status.busy_workers > 0) return { kind: "caution", text: t("health.busy") };
  return { kind: "bad", text: t("health.no_worker") };
}
