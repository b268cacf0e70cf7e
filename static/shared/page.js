// @ts-check
/**
 * What every page does first: words, bar, foot, title, and the look at how the server is.
 */

import { getJson } from "./api.js";
import { loadApps, mountAppNav } from "./app-nav.js";
import { byId, fill, h } from "./dom.js";
import { initLanguage, onLangChange, t } from "./i18n.js";
import { watchStatus } from "./status-source.js";

const PRODUCT = "MiniCPM-o live";
const READY_MARK = "page-interactive";

/**
 * @typedef {Object} FrontendDefaults the answer of GET /api/frontend_defaults
 * @property {number} playback_delay_ms
 * @property {string | null} default_lang
 * @property {number} max_kv_tokens
 * @property {boolean} recording_enabled
 * @property {Record<string, number>} half_duplex
 * @property {Record<string, number>} duplex
 * @property {Record<string, number>} limits
 *
 * @typedef {Object} Page
 * @property {FrontendDefaults | null} defaults null if the server was not reached
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
  const apps = loadApps();
  /** @type {Promise<FrontendDefaults | null>} */
  const asked = getJson("/api/frontend_defaults").then(
    (answer) => /** @type {FrontendDefaults} */ (answer),
    () => null,
  );
  await initLanguage(asked.then((told) => told?.default_lang));
  const defaults = await asked;

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
