// @ts-check
/**
 * The conversations this browser kept links to.
 */

import { appTitle } from "../shared/app-nav.js";
import { fill, h, icon, on } from "../shared/dom.js";
import { formatDateTime } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { clearRecent, listRecent } from "../shared/recent-sessions.js";
import { toast } from "../shared/toast.js";
import { appLook } from "./app-choice.js";

/** @param {import("../shared/recent-sessions.js").RecentSession} session */
function entryNode({ id, appType, savedAt }) {
  return h(
    "li",
    {},
    h(
      "a",
      { class: "card card-link recent-card", href: `/s/${encodeURIComponent(id)}` },
      icon(appLook(appType).icon),
      h("span", {}, h("strong", {}, appTitle(appType, appType)), h("span", { class: "small soft" }, whenText(savedAt))),
    ),
  );
}

/** @param {string} savedAt */
function whenText(savedAt) {
  return Number.isNaN(Date.parse(savedAt)) ? "" : formatDateTime(savedAt);
}

/**
 * @param {{section: HTMLElement, list: HTMLElement, clear: HTMLElement}} places
 * @param {Storage | null} storage null where the browser forbids it
 */
export function mountRecentList({ section, list, clear }, storage) {
  const draw = () => {
    const sessions = storage ? listRecent(storage) : [];
    section.hidden = sessions.length === 0;
    fill(list, sessions.map(entryNode));
  };
  on(clear, "click", () => {
    if (storage) clearRecent(storage);
    draw();
    toast(t("home.recent_cleared"));
  });
  // Another window may have added one.
  on(window, "storage", draw);
  on(window, "pageshow", draw);
  onLangChange(draw);
  draw();
}
