// @ts-check
/** Audit: what administrators did, newest first. */

import { h, setText } from "../shared/dom.js";
import { formatDateTime } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { auditAction } from "./admin-facts.js";
import { mountTable } from "./table.js";
import { UNKNOWN, ago, said } from "./words.js";

/** @typedef {Http.AuditEntry & {key: string}} Row */

const LIMIT = 200;
const FIRST_FAILURE = 400;

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api }) {
  const place = h("div", { class: "admin-wide" });
  el.append(said("p", "admin.audit_lead", { class: "soft admin-read" }), place);
  const table = mountTable(place, {
    captionKey: "admin.audit",
    emptyKey: "admin.audit_empty",
    keyOf: (/** @type {Row} */ row) => row.key,
    columns: [
      { labelKey: "admin.col_when", mount: whenCell },
      { labelKey: "admin.col_did", text: ({ action }) => actionWords(action) },
      { labelKey: "admin.col_target", look: "mono", text: ({ target }) => target || UNKNOWN },
      { labelKey: "admin.col_asked", look: "small", text: ({ details }) => details || UNKNOWN },
      { labelKey: "admin.col_outcome", mount: outcomeCell },
      { labelKey: "admin.col_address", look: "mono", text: ({ address }) => address || UNKNOWN },
    ],
  });
  return {
    async refresh() {
      const { entries } = /** @type {{entries: Http.AuditEntry[]}} */ (await api.get(`/api/admin/audit?limit=${LIMIT}`));
      table.update(withKeys(entries));
    },
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

/** @param {HTMLElement} cell @returns {(row: Row) => void} */
function whenCell(cell) {
  const when = h("span");
  const age = h("span", { class: "small soft" });
  cell.append(h("div", { class: "admin-when" }, when, age));
  return ({ time }) => {
    setText(when, formatDateTime(time));
    setText(age, ago(time));
  };
}

/** @param {HTMLElement} cell @returns {(row: Row) => void} */
function outcomeCell(cell) {
  const words = h("span");
  const badge = h("span", { class: "badge" }, h("span", { class: "dot" }), words);
  cell.append(badge);
  return ({ status }) => {
    badge.dataset.kind = status < FIRST_FAILURE ? "good" : "bad";
    setText(words, status < FIRST_FAILURE ? t("admin.went_well") : t("admin.refused", { status }));
  };
}
