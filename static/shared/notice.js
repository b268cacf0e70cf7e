// @ts-check
/** A place on the page that says what is wrong and what to do next. */

import { html, icon, mountView, nothing } from "./lit.js";
import { problemText } from "./problems.js";

/**
 * @typedef {Object} NoticeAction
 * @property {() => string} label
 * @property {() => void} [run]
 * @property {string} [href] a link in place of a button
 *
 * @typedef {{code?: string, message?: string}} Problem
 * @typedef {{kind?: "bad" | "caution" | "good", params?: Record<string, string | number>, actions?: NoticeAction[]}} NoticeLook
 */

/**
 * @param {string | Problem} problem
 * @param {NoticeLook} [look]
 */
export function noticeView(problem, { kind = "bad", params, actions = [] } = {}) {
  const { title, nextStep, detail } = problemText(problem, params);
  return html`<div class="notice" data-kind=${kind}>
    ${icon(kind === "good" ? "check" : "warning")}
    <div class="stack-tight">
      <p class="notice-title">${title}</p>
      <p>${nextStep}</p>
      ${detail ? html`<p class="small soft">${detail}</p>` : nothing}
      ${actions.length > 0 ? html`<div class="row">${actions.map(actionView)}</div>` : nothing}
    </div>
  </div>`;
}

/** @param {NoticeAction} action */
const actionView = ({ label, run, href }) =>
  href
    ? html`<a class="button" href=${href}>${label()}</a>`
    : html`<button type="button" class="button" @click=${() => run?.()}>${label()}</button>`;

/** @param {HTMLElement} el stays empty and hidden until something is shown */
export function mountNotice(el) {
  el.setAttribute("role", "alert");
  el.hidden = true;
  /** @type {[string | Problem, NoticeLook | undefined] | null} */
  let shown = null;
  const draw = mountView(el, () => (shown ? noticeView(...shown) : nothing));
  return {
    /** Shows a problem until it is cleared. @param {string | Problem} problem @param {NoticeLook} [look] */
    show(problem, look) {
      shown = [problem, look];
      el.dataset.code = problemText(problem).code;
      draw();
      el.hidden = false;
    },
    clear() {
      shown = null;
      el.hidden = true;
      delete el.dataset.code;
      draw();
    },
  };
}
