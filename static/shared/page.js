// @ts-check
/**
 * What every page does first: words, bar, foot, title, and the look at how the server is.
 */

import { loadApps, mountAppNav } from "./app-nav.js";
import { watchForChinese } from "./chinese-font.js";
import { byId, fill, h } from "./dom.js";
import { initLanguage, onLangChange, t } from "./i18n.js";
import { serverDefaults } from "./server-defaults.js";
import { watchStatus } from "./status-source.js";

const PRODUCT = "MiniCPM-o live";
const READY_MARK = "page-interactive";

/**
 * @typedef {Object} Page
 * @property {import("./server-defaults.js").FrontendDefaults | null} defaults null if the server was not reached
 * @property {Promise<import("./app-nav.js").App[]>} apps
 * @property {(listener: (report: import("./status-source.js").StatusReport) => void) => void} onStatus
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
  mountFooter(byId("footer", HTMLElement));
  const showTitle = () => {
    document.title = `${t(titleKey)} · ${PRODUCT}`;
  };
  onLangChange(showTitle);
  showTitle();

  /** @type {Set<(report: import("./status-source.js").StatusReport) => void>} */
  const listeners = new Set([nav.badge.update]);
  /** @type {import("./status-source.js").StatusReport | null} */
  let latest = null;
  const source = watchStatus((report) => {
    latest = report;
    for (const listener of listeners) listener(report);
  }, { intervalMs: statusIntervalMs });
  return {
    defaults,
    apps,
    refreshStatus: source.refresh,
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

/** @param {HTMLElement} el */
function mountFooter(el) {
  const draw = () =>
    fill(
      el,
      h("span", {}, t("footer.about")),
      h("a", { href: "/api/docs" }, t("footer.api")),
    );
  el.classList.add("footer");
  onLangChange(draw);
  draw();
}
