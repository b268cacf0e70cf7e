// @ts-check
/** Conversations: who is being served or connected, and how to end one. */

import { h, setText } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { actionButton } from "./action-button.js";
import { canStop, sessionRows } from "./admin-facts.js";
import { mountTable } from "./table.js";
import { UNKNOWN, kindName, said, span } from "./words.js";

/** @typedef {import("./admin-facts.js").SessionRow} SessionRow */

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api, page }) {
  el.append(said("p", "admin.conversations_lead", { class: "soft" }));
  /** @type {Http.SessionInfo[]} */
  let live = [];

  const refresh = async () => {
    const [{ sessions }, queue] = await Promise.all([api.get("/api/sessions"), api.get("/api/queue")]);
    live = sessions;
    table.update(sessionRows(live, queue, Date.now()));
  };
  const after = async () => {
    await refresh().catch(() => {}); // the next look tells
    void page.refreshStatus();
  };
  const nameOf = (/** @type {SessionRow} */ { kind, sessionId }) => `${kindName(kind)} ${sessionId ?? ""}`.trim();
  const table = mountTable(el, {
    captionKey: "admin.conversations",
    emptyKey: "admin.conversations_empty",
    keyOf: (/** @type {SessionRow} */ row) => row.key,
    columns: [
      { labelKey: "admin.col_kind", text: ({ kind }) => kindName(kind) },
      { labelKey: "admin.col_session", look: "mono", text: ({ sessionId }) => sessionId ?? UNKNOWN },
      { labelKey: "admin.col_worker", look: "mono", text: ({ workerId }) => workerId ?? UNKNOWN },
      { labelKey: "admin.col_doing", text: ({ isServed }) => t(isServed ? "admin.served" : "admin.between") },
      { labelKey: "admin.col_elapsed", text: ({ elapsedS }) => span(elapsedS) },
      {
        labelKey: "admin.col_remaining",
        text: ({ remainingS: s }) => (s === null ? UNKNOWN : s > 0 ? t("admin.about", { time: span(s) }) : t("admin.overdue")),
      },
      {
        labelKey: "admin.col_actions",
        mount: (cell, current) => {
          const button = actionButton({
            icon: "stop",
            kind: "danger",
            deed: () => {
              const row = current();
              return {
                about: "session",
                question: () => ({
                  title: t("admin.stop_ask", { name: nameOf(row) }),
                  text: t("admin.stop_ask_text"),
                  confirm: t("admin.stop"),
                }),
                run: () => api.send("POST", `/api/admin/sessions/${encodeURIComponent(row.sessionId ?? "")}/stop`),
                done: () => t("admin.stopped", { name: nameOf(row) }),
                after,
              };
            },
          });
          const cannot = h("span", { class: "small soft" });
          cell.append(button.node, cannot);
          return (row) => {
            const may = canStop(row, live);
            button.node.hidden = !may;
            cannot.hidden = may;
            setText(cannot, t("admin.no_stop"));
            button.draw({ label: t("admin.stop"), name: nameOf(row) });
          };
        },
      },
    ],
  });
  return { refresh };
}
