// @ts-check
/**
 * A row of choices that behaves as radio buttons do.
 */

import { fill, h, icon, on } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";

/** @typedef {import("./omni-settings.js").OmniStore} OmniStore */

const ARROWS = Object.freeze({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 });

/**
 * @typedef {Object} ChoiceRowOptions
 * @property {OmniStore} store
 * @property {"source" | "file_sound"} setting
 * @property {Readonly<Record<string, string>>} choices with the icon of each
 * @property {string} labelKey of the group; `LABEL_CHOICE` are those of the choices
 */

/**
 * @param {HTMLElement} el
 * @param {ChoiceRowOptions} options
 */
export function mountChoiceRow(el, { store, setting, choices, labelKey }) {
  const pills = Object.keys(choices).map((value) =>
    h("button", { type: "button", class: "pill", role: "radio", dataset: { kind: value }, on: { click: () => store.set(setting, value) } }),
  );
  el.classList.add("source-choice");
  el.setAttribute("role", "radiogroup");
  el.append(...pills);
  on(el, "keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = ARROWS[/** @type {keyof typeof ARROWS} */ (event.key)];
    if (!step) return;
    event.preventDefault();
    const at = pills.findIndex((pill) => pill === document.activeElement);
    const next = pills[(at + step + pills.length) % pills.length];
    next.click();
    next.focus();
  });
  const draw = () => {
    el.setAttribute("aria-label", t(labelKey));
    for (const pill of pills) {
      const value = pill.dataset.kind ?? "";
      const isOn = store.get(setting) === value;
      pill.setAttribute("aria-checked", String(isOn));
      pill.tabIndex = isOn ? 0 : -1;
      fill(pill, icon(choices[value]), " ", t(`${labelKey}_${value}`));
    }
  };
  on(store, "change", draw);
  onLangChange(draw);
  draw();
}
