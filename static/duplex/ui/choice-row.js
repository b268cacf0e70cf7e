// @ts-check
/**
 * A row of choices that behaves as radio buttons do.
 */

import { fill, h, icon, on } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";

const ARROWS = Object.freeze({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 });

/**
 * @template {string} Name
 * @typedef {{get: (name: Name) => unknown, set: (name: Name, value: string) => void} & EventTarget} ChoiceStore
 */

/**
 * @template {string} Name
 * @typedef {Object} ChoiceRowOptions
 * @property {ChoiceStore<Name>} store
 * @property {Name} setting
 * @property {Readonly<Record<string, string>>} choices with the icon of each
 * @property {string} labelKey of the group
 * @property {(choice: string) => string} textOf
 */

/**
 * @template {string} Name
 * @param {HTMLElement} el
 * @param {ChoiceRowOptions<Name>} options
 */
export function mountChoiceRow(el, { store, setting, choices, labelKey, textOf }) {
  const pills = Object.keys(choices).map((value) =>
    h("button", {
      type: "button",
      class: "pill",
      role: "radio",
      dataset: { kind: value },
      on: { click: () => store.set(setting, value) },
    }),
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
      fill(pill, icon(choices[value]), " ", textOf(value));
    }
  };
  on(store, "change", draw);
  onLangChange(draw);
  draw();
}
