// @ts-check
/** A table whose rows keep their place in the document while their figures change. */

import { fill, h, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { mountKeyedRows } from "./keyed-rows.js";

/**
 * @template T
 * @typedef {Object} Table
 * @property {HTMLTableElement} node
 * @property {(rows: readonly T[]) => void} update
 */

/**
 * Either `text`, or `mount` for a cell that holds more than words.
 *
 * @template T
 * @typedef {Object} TableColumn
 * @property {string} labelKey
 * @property {string} [look] class of its cells
 * @property {(row: T) => string} [text]
 * @property {(cell: HTMLElement, current: () => T) => (row: T) => void} [mount] returns how to bring it up to date
 */

/**
 * @template T
 * @param {HTMLElement} el
 * @param {{captionKey: string, emptyKey: string, keyOf: (row: T) => string, columns: TableColumn<T>[]}} options
 * @returns {Table<T>}
 */
export function mountTable(el, { captionKey, emptyKey, keyOf, columns }) {
  const head = h("tr");
  const body = h("tbody");
  const caption = h("caption", { class: "visually-hidden" });
  const table = h("table", { class: "table" }, caption, h("thead", {}, head), body);
  const empty = h("p", { class: "empty", hidden: true });
  el.append(table, empty);

  /** @type {readonly T[] | null} */
  let latest = null;
  const rows = mountKeyedRows(body, { keyOf, make: (/** @type {T} */ row) => makeRow(columns, row) });
  const update = () => {
    if (latest === null) return;
    rows.update(latest);
    table.hidden = latest.length === 0;
    empty.hidden = latest.length > 0;
  };
  const drawWords = () => {
    setText(caption, t(captionKey));
    setText(empty, t(emptyKey));
    fill(
      head,
      columns.map(({ labelKey, look }) => h("th", { scope: "col", class: look }, t(labelKey))),
    );
  };
  table.hidden = true;
  onLangChange(() => {
    drawWords();
    update();
  });
  drawWords();
  return {
    node: table,
    update(wanted) {
      latest = wanted;
      update();
    },
  };
}

/**
 * @template T
 * @param {TableColumn<T>[]} columns
 * @param {T} first
 * @returns {import("./keyed-rows.js").Row<T>}
 */
function makeRow(columns, first) {
  let current = first;
  const node = h("tr");
  const cells = columns.map(({ labelKey, look, text, mount }) => {
    const cell = h("td", { class: look });
    node.append(cell);
    const draw = mount?.(cell, () => current) ?? ((/** @type {T} */ row) => setText(cell, text?.(row) ?? ""));
    return (/** @type {T} */ row) => {
      cell.dataset.label = t(labelKey);
      draw(row);
    };
  });
  const update = (/** @type {T} */ row) => {
    current = row;
    cells.forEach((draw) => draw(row));
  };
  update(first);
  return { node, update };
}
