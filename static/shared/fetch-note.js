// @ts-check
/**
 * How far the server's fetch of the cascade is, in words and as a bar.
 */

import { fill, h, setText } from "./dom.js";
import { formatBytes } from "./formats.js";
import { t } from "./i18n.js";

/**
 * @param {HTMLElement} el stays hidden while nothing is fetched, and once the fetched model answers
 * @returns {{draw: (status: Http.ServiceStatus | null) => void}}
 */
export function mountFetchNote(el) {
  const words = h("p");
  const bar = h("progress", { max: 1 });
  el.classList.add("stack-tight");
  fill(el, words, bar);
  return {
    draw(status) {
      const fetch = status?.model?.kind === "cascade" ? null : (status?.fetch ?? null);
      el.hidden = fetch === null;
      if (fetch === null) return;
      const { state, done_bytes: done, total_bytes: total, problem } = fetch;
      const text = t(`fetch.${state}`, { done: formatBytes(done), total: formatBytes(total) });
      setText(words, problem ? `${text} ${problem}` : text);
      bar.hidden = state !== "fetching";
      bar.value = total > 0 ? done / total : 0;
      bar.setAttribute("aria-label", t("fetch.bar"));
    },
  };
}
