// @ts-check
/**
 * The bar on top: the pages that are switched on, how the server is, language and theme.
 */

import { getJson } from "./api.js";
import { fill, h, icon, on, setText } from "./dom.js";
import { getLang, languageNames, onLangChange, setLang, t, tn } from "./i18n.js";

/** @typedef {import("./page.js").StatusReport} StatusReport */

// Light, dark, or as the system wishes.

const STORAGE_KEY = "minicpmo_theme";
const THEMES = /** @type {const} */ (["auto", "light", "dark"]);
/** @typedef {typeof THEMES[number]} Theme */

/** @returns {Theme} what was chosen */
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

/**
 * @typedef {Object} App
 * @property {string} app_id
 * @property {string} name
 * @property {string} route
 */

const THEME_ICONS = { auto: "contrast", light: "sun", dark: "moon" };

/** @returns {Promise<App[]>} the apps that are switched on; none if the server is not reached */
export async function loadApps() {
  /** @type {{apps: App[]}} */
  const { apps } = await getJson("/api/apps").catch(() => ({ apps: [] }));
  return apps;
}

/**
 * @param {HTMLElement} el the page's header
 * @param {Promise<App[]>} apps
 * @returns {{badge: ReturnType<typeof mountHealthBadge>}}
 */
export function mountAppNav(el, apps) {
  const links = h("ul", { class: "nav-links", id: "nav-links" });
  const menu = h(
    "button",
    { type: "button", class: "button button-quiet button-icon nav-menu", "aria-controls": "nav-links", "aria-expanded": "false" },
    icon("menu"),
  );
  const theme = h("button", { type: "button", class: "button button-quiet button-icon" });
  const language = h("button", { type: "button", class: "button button-quiet", id: "language" });
  const health = h("span");
  const brand = h("a", { class: "brand", href: "/" }, icon("brand"), h("span", { class: "brand-name" }, "MiniCPM-o live"));
  const bar = h("div", { class: "nav-inner" }, menu, brand, links, h("div", { class: "nav-tools" }, health, language, theme));
  el.classList.add("nav");
  fill(el, h("nav", {}, bar));

  /** @type {App[]} */
  let shown = [];
  const draw = () => {
    el.querySelector("nav")?.setAttribute("aria-label", t("nav.label"));
    brand.setAttribute("aria-label", t("nav.home"));
    menu.setAttribute("aria-label", t("nav.menu"));
    drawLinks(links, shown);
    drawLanguage(language);
    drawTheme(theme);
  };
  const open = (/** @type {boolean} */ isOpen) => {
    links.dataset.open = String(isOpen);
    menu.setAttribute("aria-expanded", String(isOpen));
  };
  on(menu, "click", () => open(links.dataset.open !== "true"));
  on(el, "keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || links.dataset.open !== "true") return;
    open(false);
    menu.focus();
  });
  on(language, "click", () => void setLang(otherLanguage()));
  on(theme, "click", () => {
    setTheme(THEMES[(THEMES.indexOf(getTheme()) + 1) % THEMES.length]);
    drawTheme(theme);
  });
  onLangChange(draw);
  draw();
  void apps.then((list) => {
    shown = list;
    draw();
  });
  return { badge: mountHealthBadge(health) };
}

/**
 * @param {HTMLElement} links
 * @param {App[]} apps
 */
function drawLinks(links, apps) {
  const routes = [
    ...apps.map(({ app_id, route, name }) => ({ route, text: appTitle(app_id, name) })),
    { route: "/check", text: t("nav.check") },
    { route: "/admin", text: t("nav.admin") },
  ];
  const items = routes.map(({ route, text }) => {
    const isHere = location.pathname === route;
    return h("li", {}, h("a", { href: route, "aria-current": isHere ? "page" : null }, text));
  });
  fill(links, items);
}

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

function otherLanguage() {
  const codes = Object.keys(languageNames());
  return codes[(codes.indexOf(getLang()) + 1) % codes.length];
}

/** @param {HTMLElement} button */
function drawLanguage(button) {
  const next = otherLanguage();
  button.hidden = Object.keys(languageNames()).length < 2;
  // Drawn, so that an English page needs no Chinese font for one word.
  fill(button, next === "zh" ? icon("chinese") : languageNames()[next]);
  button.setAttribute("aria-label", languageNames()[next]);
  button.title = languageNames()[next];
  button.lang = next;
}

/** @param {HTMLElement} button */
function drawTheme(button) {
  const theme = getTheme();
  fill(button, icon(THEME_ICONS[theme]));
  button.setAttribute("aria-label", t(`nav.theme_${theme}`));
  button.title = t(`nav.theme_${theme}`);
}

// The small light in the bar: is the server there, is somebody free, how many wait.

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

/**
 * @param {HTMLElement} el
 * @returns {{update: (report: StatusReport) => void}}
 */
function mountHealthBadge(el) {
  const text = h("span", { class: "health-text" });
  el.classList.add("badge", "health-badge");
  el.setAttribute("role", "status");
  fill(el, h("span", { class: "dot" }), text);
  /** @type {StatusReport | null} */
  let latest = null;
  const draw = () => {
    const { kind, text: words } = latest ? describeHealth(latest) : { kind: "", text: t("health.asking") };
    el.dataset.kind = kind;
    el.title = words;
    setText(text, words);
  };
  onLangChange(draw);
  draw();
  return {
    update(report) {
      latest = report;
      draw();
    },
  };
}
