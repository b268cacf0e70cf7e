// @ts-check
/** A table whose rows keep their place in the document while their figures change. */

import { t } from "../shared/i18n.js";
import { html, nothing, repeat } from "../shared/lit.js";

/**
 * @template T
 * @typedef {{labelKey: string, look?: string, cell: (row: T) => unknown}} TableColumn `look` is a class of its cells
 */

/**
 * @template T
 * @param {{captionKey: string, emptyKey: string, keyOf: (row: T) => string, columns: TableColumn<T>[],
 *   rows: readonly T[] | null}} options rows are null until they are known
 */
export function table({ captionKey, emptyKey, keyOf, columns, rows }) {
  if (rows === null) return nothing;
  if (rows.length === 0) return html`<p class="empty">${t(emptyKey)}</p>`;
  const cells = (/** @type {T} */ row) =>
    columns.map(({ labelKey, look, cell }) => html`<td class=${look ?? nothing} data-label=${t(labelKey)}>${cell(row)}</td>`);
  return html`<table class="table">
    <caption class="visually-hidden">
      ${t(captionKey)}
    </caption>
    <thead>
      <tr>
        ${columns.map(({ labelKey, look }) => html`<th scope="col" class=${look ?? nothing}>${t(labelKey)}</th>`)}
      </tr>
    </thead>
    <tbody>
      ${repeat(
        rows,
        keyOf,
        (row) =>
          html`<tr>
            ${cells(row)}
          </tr>`,
      )}
    </tbody>
  </table>`;
}
