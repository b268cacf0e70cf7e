// @ts-check
/** Says what is wrong and what to do next: in a place of the page, or at its foot for a moment. */

import { formatBytes } from "./formats.js";
import { problemText, problemWords, t } from "./texts.js";
import { html, icon, mountView, nothing, render } from "./lit.js";

/**
 * @typedef {Object} NoticeAction
 * @property {() => string} label
 * @property {() => void} [run]
 * @property {string} [href] a link in place of a button
 *
 * @typedef {{code?: string, message?: string}} Problem
 * @typedef {{kind?: "bad" | "caution" | "good", params?: Record<string, string | number>, actions?: NoticeAction[]}} NoticeLook
 */

/** @param {string | Problem} problem @param {NoticeLook} [look] */
export function noticeView(problem, { kind = "bad", params, actions = [] } = {}) {
  const { title, nextStep: next, detail } = problemText(problem, params);
  const more = actions.length > 0 ? html`<div class="row">${actions.map(actionView)}</div>` : nothing;
  return noticeBox({ kind, sign: icon(kind === "good" ? "check" : "warning"), title, next, detail, more });
}

/** @param {{title: string, next?: string, detail?: string, kind?: string, sign: unknown, more?: unknown}} look */
export const noticeBox = ({ title, next, detail, kind, sign, more = nothing }) =>
  html`<div class="notice" data-kind=${kind ?? nothing}>
    ${sign}
    <div class="stack-tight">
      <p class="notice-title">${title}</p>
      ${next ? html`<p>${next}</p>` : nothing} ${detail ? html`<p class="small soft">${detail}</p>` : nothing} ${more}
    </div>
  </div>`;

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

// Short messages at the foot of the page that go away by themselves.

const SHOWN_MS = 5_000;
const MOST_AT_ONCE = 4; // the oldest goes first

/** While a dialog is open, nothing outside of it is seen well or can be reached. */
function tray() {
  const found = document.querySelector(".toasts") ?? document.createElement("div");
  found.className = "toasts";
  found.role = "status";
  found.ariaLive = "polite";
  const dialog = [...document.querySelectorAll("dialog:modal")].at(-1);
  const place = dialog ?? document.body;
  if (found.parentElement !== place) {
    place.append(found);
    dialog?.addEventListener("close", () => document.body.append(found), { once: true });
  }
  return found;
}

/** @param {string} text @param {{action?: {label: string, run: () => void}, shownMs?: number}} [options] */
export function toast(text, { action, shownMs = SHOWN_MS } = {}) {
  const message = document.createElement("div");
  message.className = "toast";
  const act = () => {
    message.remove();
    action?.run();
  };
  const button = action && html`<button type="button" class="button button-quiet" @click=${act}>${action.label}</button>`;
  render(html`<span>${text}</span>${button ?? nothing}`, message);
  const place = tray();
  place.append(message);
  while (place.childElementCount > MOST_AT_ONCE) place.firstElementChild?.remove();
  setTimeout(() => message.remove(), shownMs);
}

/** @param {unknown} problem an error, or its code */
export function toastProblem(problem) {
  toast(problemWords(problem));
}

// How far the server's fetch of the cascade is, in words and as a bar.

/** @param {Http.ServiceStatus | null} status @returns nothing while nothing is fetched, and once the fetched model answers */
export function fetchNote(status) {
  const fetch = status?.model?.kind === "cascade" ? null : (status?.fetch ?? null);
  if (fetch === null) return nothing;
  const { state, done_bytes: done, total_bytes: total, problem } = fetch;
  const text = t(`fetch.${state}`, { done: formatBytes(done), total: formatBytes(total) });
  return html`<div class="stack-tight">
    <p>${problem ? `${text} ${problem}` : text}</p>
    <progress
      max="1"
      .value=${total > 0 ? done / total : 0}
      ?hidden=${state !== "fetching"}
      aria-label=${t("fetch.bar")}
    ></progress>
  </div>`;
}
