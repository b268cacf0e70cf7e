// @ts-check
/** Who waits and who is being served or connected, and how to end it. */

import { formatNumber } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { html } from "../shared/lit.js";
import { UNKNOWN, actionButton, kindName, span, table } from "./words.js";
import { canStop, sessionRows } from "./admin-facts.js";

/** @import { Context, Section } from "../pages/admin.js" */
/** @import { SessionRow } from "./admin-facts.js" */
/** @import { TableColumn } from "./words.js" */

const GONE = Object.assign(new Error("The ticket is no longer in the queue."), { code: "not_found" });

/** @param {Context} context @returns {Section} */
export function makeQueue({ api, draw, page }) {
  /** @type {Http.QueueStatus | null} */
  let queue = null;
  const refresh = async () => {
    queue = await api.get("/api/queue");
    draw();
  };
  const after = async () => {
    await refresh().catch(() => {}); // the next look tells
    void page.refreshStatus();
  };
  /** @param {string} ticket */
  const cancel = async (ticket) => {
    const answer = /** @type {{success: boolean}} */ (await api.send("DELETE", `/api/queue/${encodeURIComponent(ticket)}`));
    if (!answer.success) throw GONE;
  };
  /** @param {Http.QueueItem} item */
  const cancelButton = ({ ticket_id: id, request_type: kind, position }) => {
    const name = t("admin.place_name", { n: position, kind: kindName(kind) });
    const [title, text, confirm] = [t("admin.cancel_ask", { name }), t("admin.cancel_ask_text"), t("admin.cancel_place")];
    const run = () => cancel(id);
    const done = () => t("admin.cancelled", { name });
    const deed = { about: "ticket", question: () => ({ title, text, confirm }), run, done, after };
    return actionButton({ icon: "close", kind: "danger", label: confirm, name, deed });
  };
  /** @type {TableColumn<Http.QueueItem>[]} */
  const columns = [
    { labelKey: "admin.col_position", look: "number", cell: ({ position }) => formatNumber(position) },
    { labelKey: "admin.col_kind", cell: ({ request_type: kind }) => kindName(kind) },
    { labelKey: "admin.col_session", look: "mono", cell: ({ session_id: id }) => id ?? UNKNOWN },
    { labelKey: "admin.col_waited", cell: ({ wait_elapsed_s: s }) => span(s) },
    { labelKey: "admin.col_estimate", cell: ({ estimated_wait_s: s }) => t("admin.about", { time: span(s) }) },
    { labelKey: "admin.col_actions", cell: cancelButton },
  ];
  const sizes = () => ({ n: formatNumber(queue?.queue_length ?? 0), most: formatNumber(queue?.max_queue_size ?? 0) });
  return {
    refresh,
    view: () =>
      html`<p class="soft">${queue ? t("admin.queue_lead", sizes()) : ""}</p>
        ${table({
          captionKey: "admin.queue",
          emptyKey: "admin.queue_empty",
          keyOf: ({ ticket_id: id }) => id,
          columns,
          rows: queue && queue.items,
        })}`,
  };
}

/** @param {Context} context @returns {Section} */
export function makeConversations({ api, draw, page }) {
  /** @type {Http.SessionInfo[]} */
  let live = [];
  /** @type {SessionRow[] | null} */
  let rows = null;
  const refresh = async () => {
    const [{ sessions }, queue] = await Promise.all([api.get("/api/sessions"), api.get("/api/queue")]);
    live = sessions;
    rows = sessionRows(live, queue, Date.now());
    draw();
  };
  const after = async () => {
    await refresh().catch(() => {}); // the next look tells
    void page.refreshStatus();
  };
  /** @param {SessionRow} row */
  const stopButton = (row) => {
    if (!canStop(row, live)) return html`<span class="small soft">${t("admin.no_stop")}</span>`;
    const name = `${kindName(row.kind)} ${row.sessionId ?? ""}`.trim();
    const [title, text, confirm] = [t("admin.stop_ask", { name }), t("admin.stop_ask_text"), t("admin.stop")];
    const run = () => api.send("POST", `/api/admin/sessions/${encodeURIComponent(row.sessionId ?? "")}/stop`);
    const done = () => t("admin.stopped", { name });
    const deed = { about: "session", question: () => ({ title, text, confirm }), run, done, after };
    return actionButton({ icon: "stop", kind: "danger", label: confirm, name, deed });
  };
  /** @param {SessionRow} row */
  const remaining = ({ remainingS: s }) =>
    s === null ? UNKNOWN : s > 0 ? t("admin.about", { time: span(s) }) : t("admin.overdue");
  /** @type {TableColumn<SessionRow>[]} */
  const columns = [
    { labelKey: "admin.col_kind", cell: ({ kind }) => kindName(kind) },
    { labelKey: "admin.col_session", look: "mono", cell: ({ sessionId }) => sessionId ?? UNKNOWN },
    { labelKey: "admin.col_worker", look: "mono", cell: ({ workerId }) => workerId ?? UNKNOWN },
    { labelKey: "admin.col_doing", cell: ({ isServed }) => t(isServed ? "admin.served" : "admin.between") },
    { labelKey: "admin.col_elapsed", cell: ({ elapsedS }) => span(elapsedS) },
    { labelKey: "admin.col_remaining", cell: remaining },
    { labelKey: "admin.col_actions", cell: stopButton },
  ];
  return {
    refresh,
    view: () =>
      html`<p class="soft">${t("admin.conversations_lead")}</p>
        ${table({
          captionKey: "admin.conversations",
          emptyKey: "admin.conversations_empty",
          keyOf: ({ key }) => key,
          columns,
          rows,
        })}`,
  };
}
