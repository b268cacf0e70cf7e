// @ts-check
/** What is the same on every card: the badge on top and the finding below. */

import { find, on } from "../shared/dom.js";
import { phraseText, t } from "../shared/i18n.js";
import { html, icon, mountView, nothing } from "../shared/lit.js";

/** @typedef {import("./results.js").Result} Result */

const ICONS = { todo: "clock", running: "clock", good: "check", caution: "info", bad: "warning" };

/** @param {Result} result */
function finding({ state, text, next, detail }) {
  if (!text || state === "todo") return nothing;
  const isRunning = state === "running";
  return html`<div class="notice" data-kind=${isRunning ? nothing : state}>
    ${isRunning ? html`<span class="spinner" aria-hidden="true"></span>` : icon(ICONS[state])}
    <div class="stack-tight">
      <p class="notice-title">${phraseText(text)}</p>
      ${next ? html`<p>${phraseText(next)}</p>` : nothing} ${detail ? html`<p class="small soft">${detail}</p>` : nothing}
    </div>
  </div>`;
}

/**
 * @param {HTMLElement} el
 * @param {import("./results.js").CheckId} id
 * @param {import("./results.js").Results} results
 */
export function mountCheckCard(el, id, results) {
  const badge = find(el, ".check-state", HTMLElement);
  const place = find(el, ".check-result", HTMLElement);
  const drawBadge = mountView(badge, () => {
    const { state } = results.get(id);
    el.dataset.state = state;
    badge.dataset.kind = state;
    return html`${icon(ICONS[state])}${t(`check.state_${state}`)}`;
  });
  const drawFinding = mountView(place, () => {
    const result = results.get(id);
    if (result.text) place.dataset.key = result.text.key;
    else delete place.dataset.key;
    return finding(result);
  });
  on(results, "change", () => {
    drawBadge();
    drawFinding();
  });
}
