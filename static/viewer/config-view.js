// @ts-check
/**
 * The settings of a recorded conversation, behind a disclosure.
 */

import { fill, h, icon } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";

/**
 * @param {HTMLElement} el
 * @param {Record<string, unknown>} config
 */
export function mountConfig(el, config) {
  const summary = h("summary");
  const list = h("dl", { class: "config-list" });
  el.append(h("details", { class: "panel", dataset: { panel: "config" } }, summary, list));
  const draw = () => {
    fill(summary, icon("settings"), t("viewer.config"));
    const rows = Object.entries(config).filter(([, value]) => value !== null && value !== undefined);
    fill(
      list,
      rows.length > 0 ? rows.map(([name, value]) => row(name, value)) : h("p", { class: "soft" }, t("viewer.no_config")),
    );
  };
  onLangChange(draw);
  draw();
}

/** @param {string} name @param {unknown} value */
function row(name, value) {
  return h("div", {}, h("dt", { class: "mono" }, name), h("dd", {}, valueNode(value)));
}

/** @param {unknown} value @returns {Node | string} */
function valueNode(value) {
  if (typeof value === "boolean") return t(value ? "common.yes" : "common.no");
  if (typeof value === "number") return Number.isInteger(value) ? formatNumber(value) : String(value);
  if (typeof value === "string") return value || t("common.none");
  if (value === null || value === undefined) return t("common.none");
  return h("pre", {}, JSON.stringify(value, null, 2));
}
