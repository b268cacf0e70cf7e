// @ts-check
/** The line: who waits, for how long, and how to take somebody out of it. */

import { h, setText } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { actionButton } from "./action-button.js";
import { mountTable } from "./table.js";
import { UNKNOWN, kindName, span } from "./words.js";

const GONE = Object.assign(new Error("The ticket is no longer in the queue."), { code: "not_found" });

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api, page }) {
  const lead = h("p", { class: "soft" });
  el.append(lead);
  /** @type {Http.QueueStatus | null} */
  let queue = null;

  /** @param {string} ticket */
  const cancel = async (ticket) => {
    const answer = /** @type {{success: boolean}} */ (await api.send("DELETE", `/api/queue/${encodeURIComponent(ticket)}`));
    if (!answer.success) throw GONE;
  };
  const refresh = async () => {
    queue = await api.get("/api/queue");
    draw();
  };
  const after = async () => {
    await refresh().catch(() => {}); // the next look tells
    void page.refreshStatus();
  };
  const table = mountTable(el, {
    captionKey: "admin.queue",
    emptyKey: "admin.queue_empty",
    keyOf: (/** @type {Http.QueueItem} */ item) => item.ticket_id,
    columns: [
      { labelKey: "admin.col_position", look: "number", text: ({ position }) => formatNumber(position) },
      { labelKey: "admin.col_kind", text: ({ request_type: kind }) => kindName(kind) },
      { labelKey: "admin.col_session", look: "mono", text: ({ session_id: id }) => id ?? UNKNOWN },
      { labelKey: "admin.col_waited", text: ({ wait_elapsed_s: s }) => span(s) },
      { labelKey: "admin.col_estimate", text: ({ estimated_wait_s: s }) => t("admin.about", { time: span(s) }) },
      {
        labelKey: "admin.col_actions",
        mount: (cell, current) => {
          const button = actionButton({
            icon: "close",
            kind: "danger",
            deed: () => {
              const { ticket_id: id, request_type: kind, position } = current();
              const name = t("admin.place_name", { n: position, kind: kindName(kind) });
              return {
                about: "ticket",
                question: () => ({
                  title: t("admin.cancel_ask", { name }),
                  text: t("admin.cancel_ask_text"),
                  confirm: t("admin.cancel_place"),
                }),
                run: () => cancel(id),
                done: () => t("admin.cancelled", { name }),
                after,
              };
            },
          });
          cell.append(button.node);
          return ({ position, request_type: kind }) =>
            button.draw({ label: t("admin.cancel_place"), name: t("admin.place_name", { n: position, kind: kindName(kind) }) });
        },
      },
    ],
  });
  const draw = () => {
    if (!queue) return;
    setText(lead, t("admin.queue_lead", { n: formatNumber(queue.queue_length), most: formatNumber(queue.max_queue_size) }));
    table.update(queue.items);
  };
  onLangChange(draw);
  return { refresh };
}
