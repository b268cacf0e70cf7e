// @ts-check
/**
 * The figures of an answer: one line, and a list with all of them.
 */

import { h, icon, on } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
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

/**
 * @param {Figures} figures
 * @returns {HTMLElement | null} null if there are none
 */
export function makeFigures(figures) {
  const line = figureLine(figures);
  if (!line) return null;
  const rows = figureRows(figures).map(({ key, name, value }) =>
    h("div", {}, h("dt", {}, name), h("dd", { class: "number", dataset: { figure: key } }, value)),
  );
  const ids = [
    ["request", figures.requestId, null],
    ["recording", figures.recordingSessionId, `/s/${figures.recordingSessionId}`],
  ]
    .filter(([, id]) => id)
    .map(([key, id, href]) => idRow(String(key), String(id), href ?? null));
  return h(
    "details",
    { class: "figures" },
    h("summary", { class: "small soft number" }, line),
    h("dl", { class: "figures-list small" }, rows, ids),
  );
}

/** @param {string} key @param {string} id @param {string | null} href */
function idRow(key, id, href) {
  const name = t(`chat.figure_${key}`);
  const copy = h(
    "button",
    {
      type: "button",
      class: "button button-quiet button-icon",
      "aria-label": `${t("common.copy")}: ${name}`,
      title: t("common.copy"),
    },
    icon("copy"),
  );
  on(copy, "click", () => void copyText(href ? new URL(href, location.href).href : id));
  const shown = href ? h("a", { href }, id) : id;
  return h("div", {}, h("dt", {}, name), h("dd", { class: "mono", dataset: { figure: key } }, shown, copy));
}

/** @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(t("common.copied"));
  } catch {
    toast(t("chat.copy_failed"));
  }
}
