/** Workers (state, drain, restart), queue and conversations. */

import { formatNumber, t, tn } from "../shared/texts.js";
import { restartBlock, sessionRows, TONES, workerState } from "./admin-facts.js";
import { actionButton, table } from "./words.js";
import { ago, FACTS, kindName, memory, modelWords, span, startWords, UNKNOWN } from "./admin-texts.js";
import { html, nothing, repeat } from "../shared/lit.js";

/** @import { Context } from "../pages/admin.js" */
/** @import { SessionRow } from "./admin-facts.js" */

const SHOWN_SESSIONS = 12;
const ALMOST_FULL = 0.92; // share of the memory from which the bar changes colour

export function makeWorkers(/** @type {Context} */ { api, after }) {
  /** @type {Http.WorkerInfo[] | null} */ let workers = null;
  const buttons = (/** @type {Http.WorkerInfo} */ worker) => {
    const { worker_id: name, is_draining: isDraining, sessions } = worker;
    const path = `/api/admin/workers/${encodeURIComponent(name)}`;
    const block = restartBlock(worker);
    const drain = actionButton({
      icon: "pause",
      label: t(isDraining ? "admin.undrain" : "admin.drain"),
      name,
      about: "worker",
      after,
      run: () => api.send("PUT", path, { draining: !isDraining }),
      done: () => t(isDraining ? "admin.undrained" : "admin.drained", { name }),
    });
    const restart = actionButton({
      icon: "retry",
      label: t("admin.restart"),
      name,
      about: "worker",
      isPossible: block === null,
      after,
      question: () => ({
        title: t("admin.restart_ask", { name }),
        text: sessions.length > 0 ? tn("admin.restart_ask_busy", sessions.length) : t("admin.restart_ask_idle"),
      }),
      run: () => api.send("POST", `${path}/restart`),
      done: () => t("admin.restarting", { name }),
    });
    return html`<div class="stack-tight admin-worker-buttons">
      <div class="row">${drain} ${restart}</div>
      ${block === null ? nothing : html`<p class="small soft">${t(`admin.no_restart_${block}`)}</p>`}
    </div>`;
  };
  return {
    refresh: async () => void ({ workers } = await api.get("/workers")),
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

function card(/** @type {Http.WorkerInfo} */ worker, /** @type {unknown} */ buttons) {
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
      <span class="badge" data-kind=${TONES[is]}><span class="dot"></span><span>${t(`admin.state_${is}`)}</span></span>
    </div>
    <p class="small soft">${modelWords(worker)}</p>
    ${progress(worker)} ${memoryBar(worker)} ${factList(worker)} ${sessionList(worker)}
    <p class="small admin-last-error" data-now=${String(error !== null)} ?hidden=${trouble === ""}>${trouble}</p>
    ${buttons}
  </article>`;
}

/** Progress of a start or restart. @param {Http.WorkerInfo} worker */
function progress(worker) {
  const words = startWords(worker);
  if (words === null) return nothing;
  const share = workerState(worker) === "loading" ? (worker.loading?.progress ?? null) : null;
  return html`<div class="stack-tight">
    <p class="small" role="status">${words}</p>
    <progress max="1" value=${share ?? nothing} aria-label=${words}></progress>
  </div>`;
}

function memoryBar(/** @type {Http.WorkerInfo} */ { vram_used_mb: used, vram_total_mb: total }) {
  if (used === null || !total) return nothing;
  const words = t("admin.memory_of", { used: memory(used), total: memory(total) });
  return html`<div class="admin-memory">
    <div class="spread"><span class="small soft">${t("admin.gpu_memory")}</span><span class="small number">${words}</span></div>
    <meter min="0" max="1" high=${ALMOST_FULL} .value=${used / total} aria-label="${t("admin.gpu_memory")}: ${words}"></meter>
  </div>`;
}

const factList = (/** @type {Http.WorkerInfo} */ worker) =>
  html`<dl class="admin-facts small">
    ${FACTS.map(
      ([key, value]) =>
        html`<div>
          <dt class="soft">${t(key)}</dt>
          <dd class="number">${value(worker)}</dd>
        </div>`,
    )}
  </dl>`;

function sessionList(/** @type {Http.WorkerInfo} */ { sessions }) {
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

// Queue and conversations, with cancel and stop.

const GONE = Object.assign(new Error("The ticket is no longer in the queue."), { code: "not_found" });

export function makeQueue(/** @type {Context} */ { api, after }) {
  /** @type {Http.QueueStatus | null} */ let queue = null;
  const cancelButton = (/** @type {Http.QueueItem} */ { ticket_id: id, request_type: kind, position }) => {
    const name = t("admin.place_name", { n: position, kind: kindName(kind) });
    return actionButton({
      icon: "close",
      label: t("admin.cancel_place"),
      name,
      about: "ticket",
      after,
      question: () => ({ title: t("admin.cancel_ask", { name }), text: t("admin.cancel_ask_text") }),
      async run() {
        const answer = /** @type {{success: boolean}} */ (await api.send("DELETE", `/api/queue/${encodeURIComponent(id)}`));
        if (!answer.success) throw GONE;
      },
      done: () => t("admin.cancelled", { name }),
    });
  };
  return {
    refresh: async () => void (queue = await api.get("/api/queue")),
    view() {
      const sizes = { n: formatNumber(queue?.queue_length ?? 0), most: formatNumber(queue?.max_queue_size ?? 0) };
      return html`<p class="soft">${queue ? t("admin.queue_lead", sizes) : ""}</p>
        ${table("queue", queue && queue.items, ({ ticket_id: id }) => id, [
          { labelKey: "admin.col_position", look: "number", cell: ({ position }) => formatNumber(position) },
          { labelKey: "admin.col_kind", cell: ({ request_type: kind }) => kindName(kind) },
          { labelKey: "admin.col_session", look: "mono", cell: ({ session_id: id }) => id ?? UNKNOWN },
          { labelKey: "admin.col_waited", cell: ({ wait_elapsed_s: s }) => span(s) },
          { labelKey: "admin.col_estimate", cell: ({ estimated_wait_s: s }) => t("admin.about", { time: span(s) }) },
          { labelKey: "admin.col_actions", cell: cancelButton },
        ])}`;
    },
  };
}

export function makeConversations(/** @type {Context} */ { api, after }) {
  /** @type {SessionRow[] | null} */ let rows = null;
  const stopButton = (/** @type {SessionRow} */ row) => {
    if (!row.canStop) return html`<span class="small soft">${t("admin.no_stop")}</span>`;
    const name = `${kindName(row.kind)} ${row.sessionId ?? ""}`.trim();
    return actionButton({
      icon: "stop",
      label: t("admin.stop"),
      name,
      about: "session",
      after,
      question: () => ({ title: t("admin.stop_ask", { name }), text: t("admin.stop_ask_text") }),
      run: () => api.send("POST", `/api/admin/sessions/${encodeURIComponent(row.sessionId ?? "")}/stop`),
      done: () => t("admin.stopped", { name }),
    });
  };
  const remaining = (/** @type {SessionRow} */ { remainingS: s }) =>
    s === null ? UNKNOWN : s > 0 ? t("admin.about", { time: span(s) }) : t("admin.overdue");
  return {
    async refresh() {
      const [{ sessions }, queue] = await Promise.all([api.get("/api/sessions"), api.get("/api/queue")]);
      rows = sessionRows(sessions, queue, Date.now());
    },
    view: () =>
      html`<p class="soft">${t("admin.conversations_lead")}</p>
        ${table("conversations", rows, ({ key }) => key, [
          { labelKey: "admin.col_kind", cell: ({ kind }) => kindName(kind) },
          { labelKey: "admin.col_session", look: "mono", cell: ({ sessionId }) => sessionId ?? UNKNOWN },
          { labelKey: "admin.col_worker", look: "mono", cell: ({ workerId }) => workerId ?? UNKNOWN },
          { labelKey: "admin.col_doing", cell: ({ isServed }) => t(isServed ? "admin.served" : "admin.between") },
          { labelKey: "admin.col_elapsed", cell: ({ elapsedS }) => span(elapsedS) },
          { labelKey: "admin.col_remaining", cell: remaining },
          { labelKey: "admin.col_actions", cell: stopButton },
        ])}`,
  };
}
