// @ts-check
/** The figures of an answer: one line, and a list with all of them. */

import { copyText } from "../shared/copy-text.js";
import { formatNumber } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { html, iconButton, nothing } from "../shared/lit.js";
import { toast } from "../shared/toast.js";

/** @typedef {import("./conversation-facts.js").Figures} Figures */

const MS_PER_S = 1_000;

/** @param {number} ms */
function seconds(ms) {
  const digits = ms < 10 * MS_PER_S ? 2 : 1;
  return t("chat.seconds", { n: formatNumber(ms / MS_PER_S, digits) });
}

/**
 * The figures that are known, in the order in which things happened.
 *
 * @param {Figures} figures
 * @returns {{name: string, key: string, value: string}[]}
 */
function figureRows(figures) {
  const { tokenStats, queueEstimateS, queueActualMs } = figures;
  const isCounted = tokenStats !== null && tokenStats !== undefined;
  const cached = tokenStats?.cached_tokens ?? 0;
  const fresh = tokenStats?.input_tokens ?? 0;
  const wait = typeof queueActualMs === "number" ? seconds(queueActualMs) : "";
  const estimate = typeof queueEstimateS === "number" ? seconds(queueEstimateS * MS_PER_S) : "";
  /** @type {[string, unknown, () => string][]} */
  const rows = [
    ["mode", figures.transport, () => t(figures.transport === "http" ? "chat.over_http" : "chat.over_socket")],
    ["queue", queueActualMs, () => (estimate ? t("chat.estimated_actual", { estimate, actual: wait }) : wait)],
    ["prefill", figures.prefillMs, () => seconds(figures.prefillMs ?? 0)],
    ["ttft", figures.ttftMs, () => seconds(figures.ttftMs ?? 0)],
    ["ttfa", figures.ttfaMs, () => seconds(figures.ttfaMs ?? 0)],
    ["generate", figures.generateMs, () => seconds(figures.generateMs ?? 0)],
    ["total", figures.totalMs, () => seconds(figures.totalMs ?? 0)],
    ["server", figures.serverElapsedMs || null, () => seconds(figures.serverElapsedMs ?? 0)],
    ["tokens_in", isCounted || null, () => t("chat.cached_new", { cached: formatNumber(cached), fresh: formatNumber(fresh) })],
    ["tokens_out", isCounted || null, () => formatNumber(tokenStats?.generated_tokens ?? 0)],
    ["tokens_all", isCounted || null, () => formatNumber(tokenStats?.total_tokens ?? 0)],
    ["chunks", figures.chunkCount, () => formatNumber(figures.chunkCount ?? 0)],
  ];
  return rows
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([key, , text]) => ({ key, name: t(`chat.figure_${key}`), value: text() }));
}

/** @param {Figures} figures @returns {string} the line that stands under an answer */
function figureLine({ totalMs, ttftMs, tokenStats }) {
  const parts = [];
  if (typeof ttftMs === "number") parts.push(t("chat.line_ttft", { time: seconds(ttftMs) }));
  if (typeof totalMs === "number") parts.push(t("chat.line_total", { time: seconds(totalMs) }));
  if (tokenStats) parts.push(t("chat.line_tokens", { n: formatNumber(tokenStats.generated_tokens) }));
  return parts.join(" · ");
}

/** @param {Figures} figures */
export function figuresView(figures) {
  const line = figureLine(figures);
  if (!line) return nothing;
  const { requestId, recordingSessionId } = figures;
  return html`<details class="figures">
    <summary class="small soft number">${line}</summary>
    <dl class="figures-list small">
      ${figureRows(figures).map(
        ({ key, name, value }) =>
          html`<div>
            <dt>${name}</dt>
            <dd class="number" data-figure=${key}>${value}</dd>
          </div>`,
      )}
      ${requestId ? idRow("request", requestId, null) : nothing}
      ${recordingSessionId ? idRow("recording", recordingSessionId, `/s/${recordingSessionId}`) : nothing}
    </dl>
  </details>`;
}

/** @param {string} key @param {string} id @param {string | null} href */
function idRow(key, id, href) {
  const name = t(`chat.figure_${key}`);
  const copy = () => void copyWords(href ? new URL(href, location.href).href : id);
  return html`<div>
    <dt>${name}</dt>
    <dd class="mono" data-figure=${key}>
      ${href ? html`<a href=${href}>${id}</a>` : id}${iconButton("copy", t("common.copy"), copy, {
        label: `${t("common.copy")}: ${name}`,
      })}
    </dd>
  </div>`;
}

/** @param {string} text */
export async function copyWords(text) {
  toast(t((await copyText(text)) ? "common.copied" : "chat.copy_failed"));
}
