// @ts-check
/**
 * Says in plain words that a demonstration model is loaded, and what it understands.
 */

import { fill, h, icon } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";

/** @typedef {import("../shared/status-source.js").ServiceModel} ServiceModel */

const MOST_SUGGESTIONS = 6;

/**
 * @param {HTMLElement} el stays hidden while the real model, or nothing, is loaded
 * @returns {{update: (model: ServiceModel | null) => void}}
 */
export function mountModelNote(el) {
  /** @type {ServiceModel | null} */
  let model = null;
  const draw = () => {
    el.hidden = !model?.is_demonstration;
    if (model === null || el.hidden) return fill(el);
    const { kind, name } = model;
    const suggestions = (model.try_saying ?? []).slice(0, MOST_SUGGESTIONS);
    fill(
      el,
      icon("info"),
      h(
        "div",
        { class: "stack-tight" },
        h("p", {}, h("strong", {}, t(`home.model_${kind}`, { name })), " ", t(`home.model_${kind}_next`)),
        suggestions.length > 0 && h("p", { class: "label" }, t("home.try_saying")),
        suggestions.length > 0 &&
          h("ul", { class: "suggestions" }, suggestions.map((sentence) => h("li", {}, t("home.quoted", { sentence })))),
      ),
    );
  };
  onLangChange(draw);
  draw();
  return {
    update(given) {
      if (JSON.stringify(given) === JSON.stringify(model)) return;
      model = given;
      draw();
    },
  };
}
