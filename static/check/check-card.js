// @ts-check
/**
 * What is the same on every card: the badge on top and the finding below.
 */

import { fill, find, h, icon, on } from "../shared/dom.js";
import { onLangChange, phraseText, t } from "../shared/i18n.js";

/** @typedef {import("./results.js").CheckId} CheckId */
/** @typedef {import("./results.js").Results} Results */
/** @typedef {import("./results.js").Result} Result */

const ICONS = { todo: "clock", running: "clock", good: "check", caution: "info", bad: "warning" };

/** @param {Result} result */
function findingNode({ state, text, next, detail }) {
  if (!text || state === "todo") return null;
  const kind = state === "running" ? null : state;
  return h(
    "div",
    { class: "notice", dataset: kind ? { kind } : {} },
    state === "running" ? h("span", { class: "spinner", "aria-hidden": "true" }) : icon(ICONS[state]),
    h(
      "div",
      { class: "stack-tight" },
      h("p", { class: "notice-title" }, phraseText(text)),
      next && h("p", {}, phraseText(next)),
      detail && h("p", { class: "small soft" }, detail),
    ),
  );
}

/**
 * @param {HTMLElement} el
 * @param {CheckId} id
 * @param {Results} results
 */
export function mountCheckCard(el, id, results) {
  const badge = find(el, ".check-state", HTMLElement);
  const finding = find(el, ".check-result", HTMLElement);
  let drawn = "";
  const draw = () => {
    const result = results.get(id);
    const { state } = result;
    const shown = JSON.stringify([result, t("check.state_good")]);
    if (shown === drawn) return;
    drawn = shown;
    el.dataset.state = state;
    badge.dataset.kind = state;
    fill(badge, icon(ICONS[state]), t(`check.state_${state}`));
    fill(finding, findingNode(result));
    if (result.text) finding.dataset.key = result.text.key;
    else delete finding.dataset.key;
  };
  on(results, "change", draw);
  onLangChange(draw);
  draw();
}
