// @ts-check
/** What every page does first: words, bar, foot, title, and the look at how the server is. */

import { loadApps, mountAppNav } from "./app-nav.js";
import { byId } from "./dom.js";
import { initLanguage, onLangChange, t } from "./i18n.js";
import { html, mountView } from "./lit.js";
import { serverDefaults } from "./server-defaults.js";
import { getJson } from "./api.js";

// Asks the server how it is, every few seconds while the page is seen.

const INTERVAL_MS = 10_000;

/** @typedef {{status: Http.ServiceStatus | null, isReached: boolean}} StatusReport */

/**
 * @param {(report: StatusReport) => void} listener called with every answer, and on none
 * @param {number} [intervalMs]
 * @returns {() => Promise<void>} asks at once
 */
function watchStatus(listener, intervalMs = INTERVAL_MS) {
  const refresh = async () => {
    const report = await getJson("/status").then(
      (status) => ({ status, isReached: true }),
      () => ({ status: null, isReached: false }),
    );
    listener(report);
  };
  const refreshIfSeen = () => {
    if (document.visibilityState === "visible") void refresh();
  };
  setInterval(refreshIfSeen, intervalMs);
  document.addEventListener("visibilitychange", refreshIfSeen);
  void refresh();
  return refresh;
}

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

/** Watches the text of the page until there is Chinese in it. */
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
 * @property {Promise<import("./app-nav.js").App[]>} apps
 * @property {(listener: (report: StatusReport) => void) => void} onStatus
 *   called at once with the latest report, then with every new one
 * @property {() => Promise<void>} refreshStatus
 * @property {() => void} ready say that the page can be used
 */

/**
 * @param {{titleKey: string, statusIntervalMs?: number}} options how often the server is asked how it is
 * @returns {Promise<Page>}
 */
export async function startPage({ titleKey, statusIntervalMs }) {
  watchForChinese();
  const apps = loadApps();
  const defaults = await serverDefaults;
  await initLanguage();

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
  const refreshStatus = watchStatus((report) => {
    latest = report;
    for (const listener of listeners) listener(report);
  }, statusIntervalMs);
  return {
    defaults,
    apps,
    refreshStatus,
    onStatus(listener) {
      listeners.add(listener);
      if (latest) listener(latest);
    },
    ready() {
      performance.mark(READY_MARK);
      document.documentElement.dataset.ready = "true";
    },
  };
}
