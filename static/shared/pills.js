// @ts-check
/** A row of pills of which one is chosen; it behaves as radio buttons do. */

import { html, icon, nothing } from "./lit.js";

/**
 * @typedef {{value: string, text: string, title?: string, icon?: string}} Pill
 *
 * @param {Object} options
 * @param {string} options.label
 * @param {string} options.style classes of the row
 * @param {readonly Pill[]} options.pills
 * @param {string | null} options.current
 * @param {(value: string) => void} options.choose
 */
export function radioPills({ label, style, pills, current, choose }) {
  const at = Math.max(
    0,
    pills.findIndex(({ value }) => value === current),
  );
  const last = pills.length - 1;
  /** @type {Record<string, number>} */
  const targets = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
  /** @param {KeyboardEvent & {currentTarget: HTMLElement}} event */
  const onKey = (event) => {
    const target = targets[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const group = event.currentTarget;
    choose(pills[(target + pills.length) % pills.length].value);
    focusCurrent(group);
  };
  return html`<div class=${style} role="radiogroup" aria-label=${label} @keydown=${onKey}>
    ${pills.map(
      (pill, index) =>
        html`<button
          type="button"
          class="pill"
          role="radio"
          data-kind=${pill.value}
          aria-checked=${String(pill.value === current)}
          tabindex=${index === at ? 0 : -1}
          title=${pill.title ?? nothing}
          @click=${() => choose(pill.value)}
        >
          ${pill.icon ? html`${icon(pill.icon)} ` : nothing}${pill.text}
        </button>`,
    )}
  </div>`;
}

/** Of pills one alone can be reached with the tabulator. @param {HTMLElement} el */
export function focusCurrent(el) {
  const current = el.querySelector('[role=radio][tabindex="0"]');
  if (current instanceof HTMLElement) current.focus();
}
