// @ts-check
/** Overview: how the service is now, whether it takes new conversations, and the last hour. */

import { fetchNote } from "../shared/notice.js";
import { formatNumber } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { html, live, nothing } from "../shared/lit.js";
import { UNKNOWN, act, memory } from "./words.js";
import { overviewOf } from "./admin-facts.js";
import { makeCharts } from "./charts.js";

/** @import { Context, Section } from "../pages/admin.js" */
/** @import { Overview } from "./admin-facts.js" */

/**
 * @typedef {{labelKey: string, value: (facts: Overview) => string, note: (facts: Overview) => string,
 *   tone?: (facts: Overview) => string, share?: (facts: Overview) => number | null}} Figure
 */

/** @type {Record<string, Figure>} */
const FIGURES = {
  conversations: {
    labelKey: "admin.now_sessions",
    value: ({ sessions }) => formatNumber(sessions),
    note: ({ freePlaces, places }) => t("admin.now_places", { free: formatNumber(freePlaces), all: formatNumber(places) }),
    share: ({ freePlaces, places }) => (places > 0 ? 1 - freePlaces / places : null),
  },
  workers: {
    labelKey: "admin.now_workers",
    value: ({ workers }) => formatNumber(workers),
    note: (facts) => troubles(facts),
    tone: ({ broken, loading }) => (broken > 0 ? "bad" : loading > 0 ? "caution" : ""),
  },
  idle: {
    labelKey: "admin.now_idle",
    value: ({ idle }) => formatNumber(idle),
    note: () => t("admin.now_idle_note"),
    tone: ({ idle, freePlaces }) => (idle + freePlaces > 0 ? "good" : "caution"),
  },
  busy: { labelKey: "admin.now_busy", value: ({ busy }) => formatNumber(busy), note: () => t("admin.now_busy_note") },
  queue: {
    labelKey: "admin.now_queue",
    value: ({ waiting }) => formatNumber(waiting),
    note: ({ mostWaiting }) => t("admin.now_queue_most", { n: formatNumber(mostWaiting) }),
    tone: ({ waiting }) => (waiting > 0 ? "caution" : ""),
  },
  memory: {
    labelKey: "admin.now_memory",
    value: ({ memoryUsedMb }) => memory(memoryUsedMb),
    note: ({ memoryTotalMb }) =>
      memoryTotalMb === null ? t("admin.no_gpu") : t("admin.of_memory", { total: memory(memoryTotalMb) }),
    share: ({ memoryUsedMb, memoryTotalMb }) => (memoryUsedMb === null || !memoryTotalMb ? null : memoryUsedMb / memoryTotalMb),
  },
};

/** @param {Overview} facts */
function troubles({ loading, broken }) {
  if (broken > 0) return t("admin.now_broken", { n: formatNumber(broken) });
  return loading > 0 ? t("admin.now_loading", { n: formatNumber(loading) }) : t("admin.now_well");
}

/** @param {Context} context @returns {Section} */
export function makeOverview({ api, draw, page, el }) {
  /** @type {{status: Http.ServiceStatus, facts: Overview} | null} */
  let latest = null;
  /** What was asked for and is not answered yet. @type {boolean | null} */
  let askedPause = null;
  const charts = makeCharts(el, draw);

  /** @param {{target: HTMLInputElement}} event */
  const onIntake = async ({ target }) => {
    const paused = !target.checked;
    askedPause = paused;
    const isDone = await act({
      about: "intake",
      question: paused
        ? () => ({ title: t("admin.intake_ask"), text: t("admin.intake_ask_text"), confirm: t("admin.intake_ask_go") })
        : undefined,
      run: () => api.send("PUT", "/api/admin/intake", { paused }),
      done: () => t(paused ? "admin.intake_paused" : "admin.intake_resumed"),
    });
    askedPause = null;
    if (isDone && latest) latest.status.is_intake_paused = paused;
    draw();
    void page.refreshStatus();
  };
  const intake = () => {
    const isPaused = latest?.status.is_intake_paused ?? false;
    return html`<div>
      <div class="card admin-intake" data-tone=${isPaused ? "caution" : ""}>
        <div class="check">
          <input
            type="checkbox"
            role="switch"
            id="intake"
            aria-describedby="intake-note"
            .checked=${live(latest !== null && !(askedPause ?? isPaused))}
            @change=${onIntake}
          />
          <label for="intake" class="check-label">${t("admin.intake")}</label>
        </div>
        <p id="intake-note" class="small soft">${latest ? t(isPaused ? "admin.intake_off_note" : "admin.intake_on_note") : ""}</p>
      </div>
    </div>`;
  };
  const modelWords = () => {
    const model = latest?.status.model;
    if (!latest) return "";
    return model ? t(model.is_demonstration ? "admin.model_demo" : "admin.model", { name: model.name }) : t("admin.no_model");
  };
  return {
    async refresh() {
      const [status, { workers }, history] = await Promise.all([
        api.get("/status"),
        api.get("/workers"),
        api.get("/api/admin/history"),
      ]);
      latest = { status, facts: overviewOf(status, workers) };
      draw();
      charts.update(history);
    },
    view() {
      const fetch = fetchNote(latest?.status ?? null);
      return html`<p class="soft">${modelWords()}</p>
        ${fetch === nothing ? nothing : html`<div class="card">${fetch}</div>`} ${intake()}
        <div class="admin-figures">
          ${Object.entries(FIGURES).map(([id, figure]) => figureCard(id, figure, latest?.facts ?? null))}
        </div>
        <div class="stack">${charts.view()}</div>`;
    },
  };
}

/** @param {string} id @param {Figure} figure @param {Overview | null} facts */
function figureCard(id, { labelKey, value, note, tone, share }, facts) {
  const part = (facts && share?.(facts)) ?? null;
  return html`<div class="card admin-figure" data-figure=${id} data-tone=${(facts && tone?.(facts)) ?? ""}>
    <h3 class="small soft">${t(labelKey)}</h3>
    <p class="admin-figure-value number">${facts ? value(facts) : UNKNOWN}</p>
    <p class="small soft">${facts ? note(facts) : ""}</p>
    ${share ? html`<progress max="1" .value=${part ?? 0} ?hidden=${part === null} aria-label=${t(labelKey)}></progress>` : nothing}
  </div>`;
}
