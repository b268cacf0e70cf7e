// @ts-check
/** Workers: what each does and holds, and how to take one out of service or start it again. */

import { formatNumber } from "../shared/formats.js";
import { t, tn } from "../shared/i18n.js";
import { html, nothing, repeat } from "../shared/lit.js";
import { UNKNOWN, actionButton, ago, kindName, memory, milliseconds, span } from "./words.js";
import { restartBlock, toneOf, workerState } from "./admin-facts.js";

/** @import { Context, Section } from "../pages/admin.js" */

const SHOWN_SESSIONS = 12;
const ALMOST_FULL = 0.92; // of the memory: the bar changes its colour

/** @param {Context} context @returns {Section} */
export function makeWorkers({ api, draw, page }) {
  /** @type {Http.WorkerInfo[] | null} */
  let workers = null;
  const refresh = async () => {
    ({ workers } = await api.get("/workers"));
    draw();
  };
  const after = async () => {
    await refresh().catch(() => {}); // the next look tells
    void page.refreshStatus();
  };
  /** @param {Http.WorkerInfo} worker */
  const buttons = (worker) => {
    const { worker_id: name, is_draining: isDraining, sessions } = worker;
    const path = `/api/admin/workers/${encodeURIComponent(name)}`;
    const block = restartBlock(worker);
    const drain = {
      about: "worker",
      run: () => api.send("PUT", path, { draining: !isDraining }),
      done: () => t(isDraining ? "admin.undrained" : "admin.drained", { name }),
      after,
    };
    const restart = {
      about: "worker",
      question: () => ({
        title: t("admin.restart_ask", { name }),
        text: sessions.length > 0 ? tn("admin.restart_ask_busy", sessions.length) : t("admin.restart_ask_idle"),
        confirm: t("admin.restart"),
      }),
      run: () => api.send("POST", `${path}/restart`),
      done: () => t("admin.restarting", { name }),
      after,
    };
    return html`<div class="stack-tight admin-worker-buttons">
      <div class="row">
        ${actionButton({ icon: "pause", label: t(isDraining ? "admin.undrain" : "admin.drain"), name, deed: drain })}
        ${actionButton({ icon: "retry", kind: "danger", label: t("admin.restart"), name, isPossible: block === null, deed: restart })}
      </div>
      ${block === null ? nothing : html`<p class="small soft">${t(`admin.no_restart_${block}`)}</p>`}
    </div>`;
  };
  return {
    refresh,
    view: () =>
      html`<div class="admin-workers">
          ${repeat(
            workers ?? [],
            ({ worker_id: id }) => id,
            (worker) => card(worker, buttons(worker)),
          )}
        </div>
        ${workers?.length === 0 ? html`<p class="empty">${t("admin.no_workers")}</p>` : nothing}`,
  };
}

/** @param {Http.WorkerInfo} worker @param {unknown} buttons */
function card(worker, buttons) {
  const { worker_id: id, error, last_error: last, last_error_at: at } = worker;
  const is = workerState(worker);
  const trouble = error ? t("admin.error_now", { text: error }) : last ? t("admin.error_last", { text: last, ago: ago(at) }) : "";
  return html`<article
    class="card stack-tight admin-worker"
    aria-labelledby="worker-title-${id}"
    data-worker=${id}
    data-state=${is}
  >
    <div class="spread">
      <h3 id="worker-title-${id}" class="mono">${id}</h3>
      <span class="badge" data-kind=${toneOf(is)}><span class="dot"></span><span>${t(`admin.state_${is}`)}</span></span>
    </div>
    <p class="small soft">${modelWords(worker)}</p>
    ${progress(worker)} ${memoryBar(worker)} ${factList(worker)} ${sessionList(worker)}
    <p class="small admin-last-error" data-now=${String(error !== null)} ?hidden=${trouble === ""}>${trouble}</p>
    ${buttons}
  </article>`;
}

/** @param {Http.WorkerInfo} worker */
function modelWords({ model, gpu_id: gpu }) {
  const where = gpu === null ? t("admin.on_cpu") : t("admin.on_gpu", { n: gpu });
  return model ? `${model.name} · ${where}` : where;
}

/** How far starting or starting again has come. @param {Http.WorkerInfo} worker */
function progress(worker) {
  const is = workerState(worker);
  if (is !== "restart_waits" && is !== "restart_stops" && is !== "starting" && is !== "loading") return nothing;
  const share = is === "loading" ? (worker.loading?.progress ?? null) : null;
  const words =
    is === "restart_waits"
      ? tn("admin.restart_waits", worker.sessions.length)
      : is === "loading"
        ? t("admin.loading_stage", { stage: worker.loading?.stage ?? "" })
        : t(is === "starting" ? "admin.starting" : "admin.restart_stops");
  return html`<div class="stack-tight">
    <p class="small" role="status">${words}</p>
    <progress max="1" value=${share ?? nothing} aria-label=${words}></progress>
  </div>`;
}

/** @param {Http.WorkerInfo} worker */
function memoryBar({ vram_used_mb: used, vram_total_mb: total }) {
  if (used === null || !total) return nothing;
  const words = t("admin.memory_of", { used: memory(used), total: memory(total) });
  return html`<div class="admin-memory">
    <div class="spread"><span class="small soft">${t("admin.gpu_memory")}</span><span class="small number">${words}</span></div>
    <meter min="0" max="1" high=${ALMOST_FULL} .value=${used / total} aria-label="${t("admin.gpu_memory")}: ${words}"></meter>
  </div>`;
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

/** @param {Http.WorkerInfo} worker */
const factList = (worker) =>
  html`<dl class="admin-facts small">
    ${FACTS.map(
      ([key, value]) =>
        html`<div>
          <dt class="soft">${t(key)}</dt>
          <dd class="number">${value(worker)}</dd>
        </div>`,
    )}
  </dl>`;

/** @param {Http.WorkerInfo} worker */
function sessionList({ sessions }) {
  if (sessions.length === 0) return nothing;
  const left = sessions.length - SHOWN_SESSIONS;
  const lines = sessions
    .slice(0, SHOWN_SESSIONS)
    .map(
      ({ request_type: kind, started_at: at }) =>
        html`<li>${t("admin.session_since", { kind: kindName(kind), ago: ago(at) })}</li>`,
    );
  return html`<div class="stack-tight">
    <p class="small soft">${t("admin.serves")}</p>
    <ul class="admin-worker-sessions small">
      ${lines}
    </ul>
    ${left > 0 ? html`<p class="small soft">${t("admin.and_more", { n: left })}</p>` : nothing}
  </div>`;
}
