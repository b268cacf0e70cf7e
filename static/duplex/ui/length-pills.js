// @ts-check
/**
 * The lengths of answers that have a name, beside the slider of the length penalty.
 */

import { h, on, setText } from "../../shared/dom.js";
import { formatNumber } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";

/** @typedef {import("./omni-settings.js").OmniStore} OmniStore */

const LENGTHS = Object.freeze({ concise: 1.05, balanced: 1.1, verbose: 1.2 });
const DIGITS = 2;

/**
 * @param {HTMLElement} el
 * @param {OmniStore} store
 */
export function mountLengthPills(el, store) {
  el.setAttribute("role", "group");
  const pills = Object.entries(LENGTHS).map(([name, value]) => {
    const node = h("button", { type: "button", class: "pill", dataset: { length: name } });
    on(node, "click", () => store.set("length_penalty", value));
    el.append(node);
    return { name, value, node };
  });
  const draw = () => {
    el.setAttribute("aria-label", t("live.settings.length"));
    for (const { name, value, node } of pills) {
      setText(node, `${t(`omni.length_${name}`)} ${formatNumber(value, DIGITS)}`);
      node.setAttribute("aria-pressed", String(store.get("length_penalty") === value));
    }
  };
  on(store, "change", draw);
  onLangChange(draw);
  draw();
}
