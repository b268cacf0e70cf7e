// @ts-check
/** Workers: what each does and holds, and how to take one out of service or start it again. */

import { h, setText } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t, tn } from "../shared/i18n.js";
import { actionButton } from "./action-button.js";
import { restartBlock, toneOf, workerState } from "./admin-facts.js";
import { mountKeyedRows } from "./keyed-rows.js";
import { UNKNOWN, ago, kindName, memory, milliseconds, said, span } from "./words.js";

/** @typedef {import("./admin-api.js").AdminApi} AdminApi */

const SHOWN_SESSIONS = 12;

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api, page }) {
  const list = h("div", { class: "admin-workers" });
  const empty = said("p", "admin.no_workers", { class: "empty", hidden: true });
  el.append(list, empty);
  /** @type {Http.WorkerInfo[]} */
  let workers = [];
  const refresh = async () => {
    ({ workers } = await api.get("/workers"));
    draw();
  };
  const after = async () => {
    await refresh().catch(() => {}); // the next look tells
    void page.refreshStatus();
  };
  const rows = mountKeyedRows(list, {
    keyOf: (/** @type {Http.WorkerInfo} */ worker) => worker.worker_id,
    make: (/** @type {Http.WorkerInfo} */ worker) => workerCard(api, worker, after),
  });
  const draw = () => {
    rows.update(workers);
    empty.hidden = workers.length > 0;
  };
  onLangChange(draw);
  return { refresh };
}

/**
 * @param {AdminApi} api
 * @param {Http.WorkerInfo} first
 * @param {() => Promise<void>} after
 * @returns {import("./keyed-rows.js").Row<Http.WorkerInfo>}
 */
function workerCard(api, first, after) {
  let worker = first;
  const current = () => worker;
  const titleId = `worker-title-${first.worker_id}`;
  const state = h("span");
  const badge = h("span", { class: "badge" }, h("span", { class: "dot" }), state);
  const model = h("p", { class: "small soft" });
  const progress = restartProgress();
  const bar = memoryBar();
  const facts = factList();
  const sessions = sessionList();
  const problem = h("p", { class: "small admin-last-error" });
  const buttons = workerButtons(api, current, after);
  const node = h(
    "article",
    { class: "card stack-tight admin-worker", "aria-labelledby": titleId, dataset: { worker: first.worker_id } },
    h("div", { class: "spread" }, h("h3", { id: titleId, class: "mono" }, first.worker_id), badge),
    model,
    progress.node,
    bar.node,
    facts.node,
    sessions.node,
    problem,
    buttons.node,
  );
  const update = (/** @type {Http.WorkerInfo} */ next) => {
    worker = next;
    const is = workerState(worker);
    badge.dataset.kind = toneOf(is);
    node.dataset.state = is;
    setText(state, t(`admin.state_${is}`));
    setText(model, modelWords(worker));
    progress.draw(worker);
    bar.draw(worker);
    facts.draw(worker);
    sessions.update(worker.sessions);
    setText(problem, errorWords(worker));
    problem.hidden = !problem.textContent;
    problem.dataset.now = String(worker.error !== null);
    buttons.draw(worker);
  };
  update(first);
  return { node, update };
}

/** @param {Http.WorkerInfo} worker */
function modelWords({ model, gpu_id: gpu }) {
  const where = gpu === null ? t("admin.on_cpu") : t("admin.on_gpu", { n: gpu });
  return model ? `${model.name} · ${where}` : where;
}

/** @param {Http.WorkerInfo} worker */
function errorWords({ error, last_error: last, last_error_at: at }) {
  if (error) return t("admin.error_now", { text: error });
  return last ? t("admin.error_last", { text: last, ago: ago(at) }) : "";
}

/** How far starting or starting again has come. */
function restartProgress() {
  const text = h("p", { class: "small", role: "status" });
  const bar = h("progress", { max: 1 });
  const node = h("div", { class: "stack-tight", hidden: true }, text, bar);
  return {
    node,
    /** @param {Http.WorkerInfo} worker */
    draw(worker) {
      const is = workerState(worker);
      const isUnderWay = is === "restart_waits" || is === "restart_stops" || is === "starting" || is === "loading";
      node.hidden = !isUnderWay;
      if (!isUnderWay) return;
      const share = is === "loading" ? (worker.loading?.progress ?? null) : null;
      if (share === null) bar.removeAttribute("value");
      else bar.value = share;
      const words = progressWords(worker, is);
      setText(text, words);
      bar.setAttribute("aria-label", words);
    },
  };
}

/**
 * @param {Http.WorkerInfo} worker
 * @param {import("./admin-facts.js").WorkerState} is
 */
function progressWords(worker, is) {
  if (is === "restart_waits") return tn("admin.restart_waits", worker.sessions.length);
  if (is === "loading") return t("admin.loading_stage", { stage: worker.loading?.stage ?? "" });
  return t(is === "starting" ? "admin.starting" : "admin.restart_stops");
}

function memoryBar() {
  const text = h("span", { class: "small number" });
  const bar = h("meter", { min: 0, max: 1 });
  const node = h(
    "div",
    { class: "admin-memory", hidden: true },
    h("div", { class: "spread" }, said("span", "admin.gpu_memory", { class: "small soft" }), text),
    bar,
  );
  return {
    node,
    /** @param {Http.WorkerInfo} worker */
    draw({ vram_used_mb: used, vram_total_mb: total }) {
      node.hidden = used === null || !total;
      if (used === null || !total) return;
      const words = t("admin.memory_of", { used: memory(used), total: memory(total) });
      setText(text, words);
      bar.value = used / total;
      bar.high = 0.92;
      bar.setAttribute("aria-label", `${t("admin.gpu_memory")}: ${words}`);
    },
  };
}

/** @type {[key: string, value: (worker: Http.WorkerInfo) => string][]} */
const FACTS = [
  ["admin.places", ({ slots, free_slots: free }) => t("admin.places_of", { free: formatNumber(free), all: formatNumber(slots) })],
  ["admin.requests", ({ total_requests: n }) => formatNumber(n)],
  ["admin.mean_time", ({ total_requests: n, avg_inference_time_ms: ms }) => (n > 0 ? milliseconds(ms) : UNKNOWN)],
  ["admin.uptime", ({ uptime_s: s }) => span(s)],
  ["admin.kv_tokens", ({ kv_cache_tokens: n }) => formatNumber(n)],
  ["admin.cached", ({ cached_hash: hash }) => (hash ? `${hash.slice(0, 12)}…` : UNKNOWN)],
  ["admin.heard", ({ last_heartbeat: at }) => ago(at)],
];

function factList() {
  const values = FACTS.map(([key, value]) => ({ key, value, dd: h("dd", { class: "number" }) }));
  const node = h(
    "dl",
    { class: "admin-facts small" },
    values.map(({ key, dd }) => h("div", {}, said("dt", key, { class: "soft" }), dd)),
  );
  return {
    node,
    /** @param {Http.WorkerInfo} worker */
    draw: (worker) => values.forEach(({ value, dd }) => setText(dd, value(worker))),
  };
}

function sessionList() {
  const list = h("ul", { class: "admin-worker-sessions small" });
  const more = h("p", { class: "small soft" });
  const node = h("div", { class: "stack-tight", hidden: true }, said("p", "admin.serves", { class: "small soft" }), list, more);
  const rows = mountKeyedRows(list, {
    keyOf: (/** @type {Http.WorkerSession} */ session) => session.session_id ?? session.started_at,
    make: (/** @type {Http.WorkerSession} */ first) => {
      const line = h("li");
      const update = (/** @type {Http.WorkerSession} */ { request_type: kind, started_at: at }) =>
        setText(line, t("admin.session_since", { kind: kindName(kind), ago: ago(at) }));
      update(first);
      return { node: line, update };
    },
  });
  return {
    node,
    /** @param {Http.WorkerSession[]} sessions */
    update(sessions) {
      node.hidden = sessions.length === 0;
      rows.update(sessions.slice(0, SHOWN_SESSIONS));
      const left = sessions.length - SHOWN_SESSIONS;
      setText(more, left > 0 ? t("admin.and_more", { n: left }) : "");
      more.hidden = left <= 0;
    },
  };
}

/**
 * @param {AdminApi} api
 * @param {() => Http.WorkerInfo} current
 * @param {() => Promise<void>} after
 */
function workerButtons(api, current, after) {
  const setDraining = (/** @type {string} */ id, /** @type {boolean} */ draining) =>
    api.send("PUT", `/api/admin/workers/${encodeURIComponent(id)}`, { draining });
  const drain = actionButton({
    icon: "pause",
    deed: () => {
      const { worker_id: id, is_draining: is } = current();
      return {
        about: "worker",
        run: () => setDraining(id, !is),
        done: () => t(is ? "admin.undrained" : "admin.drained", { name: id }),
        after,
      };
    },
  });
  const restart = actionButton({
    icon: "retry",
    kind: "danger",
    deed: () => {
      const { worker_id: id, sessions } = current();
      return {
        about: "worker",
        question: () => ({
          title: t("admin.restart_ask", { name: id }),
          text: sessions.length > 0 ? tn("admin.restart_ask_busy", sessions.length) : t("admin.restart_ask_idle"),
          confirm: t("admin.restart"),
        }),
        run: () => api.send("POST", `/api/admin/workers/${encodeURIComponent(id)}/restart`),
        done: () => t("admin.restarting", { name: id }),
        after,
      };
    },
  });
  const why = h("p", { class: "small soft" });
  return {
    node: h("div", { class: "stack-tight admin-worker-buttons" }, h("div", { class: "row" }, drain.node, restart.node), why),
    /** @param {Http.WorkerInfo} worker */
    draw(worker) {
      const { worker_id: name, is_draining: isDraining } = worker;
      const block = restartBlock(worker);
      drain.draw({ label: t(isDraining ? "admin.undrain" : "admin.drain"), name });
      restart.draw({ label: t("admin.restart"), name, isPossible: block === null });
      setText(why, block === null ? "" : t(`admin.no_restart_${block}`));
      why.hidden = block === null;
    },
  };
}
