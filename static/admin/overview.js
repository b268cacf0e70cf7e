// @ts-check
/** Overview: how the service is now, whether it takes new conversations, and the last hour. */

import { h, on, setText } from "../shared/dom.js";
import { mountFetchNote } from "../shared/fetch-note.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { act } from "./action-button.js";
import { overviewOf } from "./admin-facts.js";
import { mountCharts } from "./charts.js";
import { UNKNOWN, memory, said } from "./words.js";

/** @typedef {import("./admin-facts.js").Overview} Overview */

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

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api, page }) {
  const model = h("p", { class: "soft" });
  const fetchPlace = h("div", { class: "card", hidden: true });
  const fetchNote = mountFetchNote(fetchPlace);
  const cards = Object.entries(FIGURES).map(([id, figure]) => figureCard(id, figure));
  const intake = mountIntake(api, page);
  const chartsPlace = h("div", { class: "stack" });
  el.append(
    model,
    fetchPlace,
    intake.node,
    h(
      "div",
      { class: "admin-figures" },
      cards.map(({ node }) => node),
    ),
    chartsPlace,
  );
  const charts = mountCharts(chartsPlace);

  /** @type {{status: Http.ServiceStatus, facts: Overview} | null} */
  let latest = null;
  const draw = () => {
    if (!latest) return;
    for (const card of cards) card.draw(latest.facts);
    fetchNote.draw(latest.status);
    intake.draw(latest.status.is_intake_paused);
    const { model: loaded } = latest.status;
    setText(
      model,
      loaded ? t(loaded.is_demonstration ? "admin.model_demo" : "admin.model", { name: loaded.name }) : t("admin.no_model"),
    );
  };
  onLangChange(draw);

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
  };
}

/**
 * @param {string} id
 * @param {Figure} figure
 */
function figureCard(id, { labelKey, value, note, tone, share }) {
  const number = h("p", { class: "admin-figure-value number" }, UNKNOWN);
  const words = h("p", { class: "small soft" });
  const bar = h("progress", { max: 1, value: 0, hidden: true });
  const node = h(
    "div",
    { class: "card admin-figure", dataset: { figure: id } },
    said("h3", labelKey, { class: "small soft" }),
    number,
    words,
    share && bar,
  );
  return {
    node,
    /** @param {Overview} facts */
    draw(facts) {
      setText(number, value(facts));
      setText(words, note(facts));
      node.dataset.tone = tone?.(facts) ?? "";
      const part = share?.(facts) ?? null;
      bar.hidden = part === null;
      bar.value = part ?? 0;
      bar.setAttribute("aria-label", t(labelKey));
    },
  };
}

/**
 * @param {import("./admin-api.js").AdminApi} api
 * @param {import("../shared/page.js").Page} page
 */
function mountIntake(api, page) {
  const input = h("input", { type: "checkbox", role: "switch", id: "intake", "aria-describedby": "intake-note" });
  const note = h("p", { id: "intake-note", class: "small soft" });
  const label = said("label", "admin.intake", { for: "intake", class: "check-label" });
  const node = h("div", { class: "card admin-intake" }, h("div", { class: "check" }, input, label), note);
  let isBusy = false;
  const draw = (/** @type {boolean} */ isPaused) => {
    if (!isBusy) input.checked = !isPaused;
    setText(note, t(isPaused ? "admin.intake_off_note" : "admin.intake_on_note"));
    node.dataset.tone = isPaused ? "caution" : "";
  };
  on(input, "change", async () => {
    const paused = !input.checked;
    isBusy = true;
    const isDone = await act({
      about: "intake",
      question: paused
        ? () => ({ title: t("admin.intake_ask"), text: t("admin.intake_ask_text"), confirm: t("admin.intake_ask_go") })
        : undefined,
      run: () => api.send("PUT", "/api/admin/intake", { paused }),
      done: () => t(paused ? "admin.intake_paused" : "admin.intake_resumed"),
    });
    isBusy = false;
    draw(isDone ? paused : !paused);
    void page.refreshStatus();
  });
  return { node: h("div", {}, node), draw };
}
