// @ts-check
/**
 * A card for every way to talk, and the table that compares them.
 */

import { appTitle } from "../shared/app-nav.js";
import { fill, h, icon } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { appLook, inOrder, isKnownApp } from "./app-choice.js";

/** @typedef {import("../shared/app-nav.js").App} App */

const ASPECTS = ["send", "answer", "interrupt", "pace", "needs"];

/** @param {App} app */
function cardNode({ app_id: appId, name, route }) {
  const { icon: picture, needs } = appLook(appId);
  return h(
    "li",
    {},
    h(
      "a",
      { class: "card card-link app-card", href: route, dataset: { app: appId } },
      h("span", { class: "app-icon" }, icon(picture)),
      h("h3", {}, appTitle(appId, name)),
      isKnownApp(appId) && h("p", { class: "soft" }, t(`home.app_${appId}`)),
      h(
        "ul",
        { class: "app-needs" },
        needs.map((need) => h("li", { class: "badge" }, t(`home.need_${need}`))),
      ),
    ),
  );
}

/** @param {App[]} apps */
function tableNodes(apps) {
  const head = h(
    "thead",
    {},
    h(
      "tr",
      {},
      h("th", { scope: "col" }, t("home.compare_mode")),
      ASPECTS.map((aspect) => h("th", { scope: "col" }, t(`home.compare_${aspect}`))),
    ),
  );
  const rows = apps.map(({ app_id: appId, name, route }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: route }, icon(appLook(appId).icon), appTitle(appId, name))),
      ASPECTS.map((aspect) =>
        h("td", { "data-label": t(`home.compare_${aspect}`) }, h("span", {}, t(`home.compare_${aspect}_${appId}`))),
      ),
    ),
  );
  return [head, h("tbody", {}, rows)];
}

/**
 * @param {{cards: HTMLElement, table: HTMLElement, comparison: HTMLElement, empty: HTMLElement}} places
 * @returns {{update: (apps: App[]) => void}}
 */
export function mountAppCards({ cards, table, comparison, empty }) {
  /** @type {App[]} */
  let shown = [];
  const draw = () => {
    fill(cards, shown.map(cardNode));
    const known = shown.filter(({ app_id: appId }) => isKnownApp(appId));
    fill(table, tableNodes(known));
    comparison.hidden = known.length === 0;
    empty.hidden = shown.length > 0;
  };
  onLangChange(draw);
  return {
    update(apps) {
      shown = inOrder(apps);
      draw();
    },
  };
}
