// @ts-check
/** Audit: what administrators did, newest first. */

import { t } from "../shared/i18n.js";
import { html } from "../shared/lit.js";
import { auditAction } from "./admin-facts.js";
import { UNKNOWN, table, when } from "./words.js";

/** @typedef {Http.AuditEntry & {key: string}} Row */

const LIMIT = 200;
const FIRST_FAILURE = 400;

/** @type {import("./words.js").TableColumn<Row>[]} */
const COLUMNS = [
  { labelKey: "admin.col_when", cell: ({ time }) => when(time) },
  { labelKey: "admin.col_did", cell: ({ action }) => actionWords(action) },
  { labelKey: "admin.col_target", look: "mono", cell: ({ target }) => target || UNKNOWN },
  { labelKey: "admin.col_asked", look: "small", cell: ({ details }) => details || UNKNOWN },
  { labelKey: "admin.col_outcome", cell: outcome },
  { labelKey: "admin.col_address", look: "mono", cell: ({ address }) => address || UNKNOWN },
];

/** @param {import("../pages/admin.js").Context} context @returns {import("../pages/admin.js").Section} */
export function makeAudit({ api, draw }) {
  /** @type {Row[] | null} */
  let rows = null;
  return {
    async refresh() {
      const { entries } = /** @type {{entries: Http.AuditEntry[]}} */ (await api.get(`/api/admin/audit?limit=${LIMIT}`));
      rows = withKeys(entries);
      draw();
    },
    view: () =>
      html`<p class="soft admin-read">${t("admin.audit_lead")}</p>
        <div class="admin-wide">
          ${table({ captionKey: "admin.audit", emptyKey: "admin.audit_empty", keyOf: ({ key }) => key, columns: COLUMNS, rows })}
        </div>`,
  };
}

/**
 * Two entries may be the same in every word: they are numbered from the oldest on.
 *
 * @param {Http.AuditEntry[]} entries newest first
 * @returns {Row[]}
 */
function withKeys(entries) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  const keyed = entries.toReversed().map((entry) => {
    const name = `${entry.time} ${entry.action} ${entry.target}`;
    const count = seen.get(name) ?? 0;
    seen.set(name, count + 1);
    return { ...entry, key: `${name} ${count}` };
  });
  return keyed.reverse();
}

/** @param {string} action */
function actionWords(action) {
  const known = auditAction(action);
  return known ? t(`admin.did_${known}`) : action;
}

/** @param {Row} row */
function outcome({ status }) {
  const isGood = status < FIRST_FAILURE;
  return html`<span class="badge" data-kind=${isGood ? "good" : "bad"}
    ><span class="dot"></span><span>${isGood ? t("admin.went_well") : t("admin.refused", { status })}</span></span
  >`;
}
