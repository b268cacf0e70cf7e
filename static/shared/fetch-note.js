// @ts-check
/** How far the server's fetch of the cascade is, in words and as a bar. */

import { formatBytes } from "./formats.js";
import { t } from "./i18n.js";
import { html, nothing } from "./lit.js";

/** @param {Http.ServiceStatus | null} status @returns nothing while nothing is fetched, and once the fetched model answers */
export function fetchNote(status) {
  const fetch = status?.model?.kind === "cascade" ? null : (status?.fetch ?? null);
  if (fetch === null) return nothing;
  const { state, done_bytes: done, total_bytes: total, problem } = fetch;
  const text = t(`fetch.${state}`, { done: formatBytes(done), total: formatBytes(total) });
  return html`<div class="stack-tight">
    <p>${problem ? `${text} ${problem}` : text}</p>
    <progress
      max="1"
      .value=${total > 0 ? done / total : 0}
      ?hidden=${state !== "fetching"}
      aria-label=${t("fetch.bar")}
    ></progress>
  </div>`;
}
