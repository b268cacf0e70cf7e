// @ts-check
/**
 * A list of rows that is brought up to date row by row: what is there stays there, with its focus,
 * open menus and selections.
 */

import { planRows } from "./row-plan.js";

const FOCUSABLE = "button, a[href], input, select, summary";

/**
 * @template T
 * @typedef {{node: HTMLElement, update: (row: T) => void, close?: () => void}} Row
 */

/**
 * @template T
 * @param {HTMLElement} container holds the rows and nothing else
 * @param {{keyOf: (row: T) => string, make: (row: T) => Row<T>}} options
 * @returns {{update: (rows: readonly T[]) => void}}
 */
export function mountKeyedRows(container, { keyOf, make }) {
  /** @type {Map<string, Row<T>>} */
  const rows = new Map();
  /** @type {string[]} */
  let shown = [];

  /** @param {string} key */
  const remove = (key) => {
    const row = rows.get(key);
    if (!row) return;
    const hadFocus = row.node.contains(document.activeElement);
    const next = row.node.nextElementSibling ?? row.node.previousElementSibling;
    row.node.remove();
    row.close?.();
    rows.delete(key);
    if (hadFocus) focusNear(next, container);
  };

  return {
    update(wanted) {
      const byKey = new Map(wanted.map((row) => [keyOf(row), row]));
      const keys = [...byKey.keys()];
      const plan = planRows(shown, keys);
      plan.removed.forEach(remove);
      for (const [key, row] of byKey) {
        const known = rows.get(key);
        if (known) known.update(row);
        else rows.set(key, make(row));
      }
      for (const { key, before } of plan.placed) {
        place(container, /** @type {Row<T>} */ (rows.get(key)).node, before === null ? null : (rows.get(before)?.node ?? null));
      }
      shown = keys;
    },
  };
}

/**
 * @param {HTMLElement} container
 * @param {HTMLElement} node
 * @param {HTMLElement | null} before
 */
function place(container, node, before) {
  const focused = node.contains(document.activeElement) ? document.activeElement : null;
  container.insertBefore(node, before);
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
}

/**
 * Whoever works with the keyboard goes on where they were, not at the top of the page.
 *
 * @param {Element | null} neighbour
 * @param {HTMLElement} container
 */
function focusNear(neighbour, container) {
  const target = neighbour?.querySelector(FOCUSABLE) ?? container.closest("section")?.querySelector("h2");
  if (target instanceof HTMLElement) target.focus({ preventScroll: true });
}
