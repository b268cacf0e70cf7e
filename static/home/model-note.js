// @ts-check
/**
 * Says in plain words that a demonstration model is loaded, what it understands, and what is to follow it.
 */

import { fill, h, icon } from "../shared/dom.js";
import { mountFetchNote } from "../shared/fetch-note.js";
import { onLangChange, t } from "../shared/i18n.js";

const MOST_SUGGESTIONS = 6;

/**
 * @param {HTMLElement} el stays hidden while the real model, or nothing, is loaded
 * @returns {{update: (status: Http.ServiceStatus | null) => void}}
 */
export function mountModelNote(el) {
  const place = h("div");
  const fetchNote = mountFetchNote(place);
  /** @type {Http.ServiceStatus | null} */
  let status = null;
  const draw = () => {
    const model = status?.model ?? null;
    el.hidden = !model?.is_demonstration;
    if (model === null || el.hidden) return fill(el);
    fetchNote.draw(status);
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
          h(
            "ul",
            { class: "suggestions" },
            suggestions.map((sentence) => h("li", {}, t("home.quoted", { sentence }))),
          ),
        place,
      ),
    );
  };
  onLangChange(draw);
  draw();
  return {
    update(given) {
      const isNew = JSON.stringify(given?.model) !== JSON.stringify(status?.model);
      status = given;
      if (isNew) draw();
      else fetchNote.draw(status);
    },
  };
}
