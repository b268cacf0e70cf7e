/** Notices and toasts that state a problem and the next step. */

import { formatBytes, problemText, problemWords, t } from "./texts.js";
import { html, icon, mountView, nothing, render, textButton } from "./lit.js";

/**
 * @typedef {Object} NoticeAction
 * @property {() => string} label
 * @property {() => void} [run]
 * @property {string} [href] makes it a link
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

const actionView = (/** @type {NoticeAction} */ { label, run, href }) =>
  href ? html`<a class="button" href=${href}>${label()}</a>` : textButton(label(), () => run?.());

/** @param {HTMLElement} el hidden until something is shown */
export function mountNotice(el) {
  el.setAttribute("role", "alert");
  el.hidden = true;
  /** @type {[string | Problem, NoticeLook | undefined] | null} */ let shown = null;
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

// Toasts: short messages at the bottom of the page that disappear by themselves.

const SHOWN_MS = 5_000;
const MOST_AT_ONCE = 4; // the oldest goes first

/** While a modal dialog is open, toasts have to be inside it to be visible and reachable. */
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
  const act = () => (message.remove(), action?.run());
  render(html`<span>${text}</span>${action ? textButton(action.label, act, { style: "button-quiet" }) : nothing}`, message);
  const place = tray();
  place.append(message);
  while (place.childElementCount > MOST_AT_ONCE) place.firstElementChild?.remove();
  setTimeout(() => message.remove(), shownMs);
}

/** @param {unknown} problem an error, or its code */
export function toastProblem(problem) {
  toast(problemWords(problem));
}

// The note about a demonstration model: suggestions, and the download of a better one.

const MAX_SUGGESTIONS = 6;

/** @param {Http.ModelFacts | null | undefined} model @returns {readonly string[]} */
export const suggestionsOf = (model) => (model?.try_saying ?? []).slice(0, MAX_SUGGESTIONS);

/**
 * @param {Http.ServiceStatus} status of a server with a demonstration model
 * @param {{chip: (sentence: string) => unknown, more?: string}} look `chip` draws a suggestion, `more` is a further sentence
 */
export function modelNote(status, { chip, more = "" }) {
  const { kind, name } = /** @type {Http.ModelFacts} */ (status.model);
  const suggestions = suggestionsOf(status.model);
  return html`${icon("info")}
    <div class="stack-tight">
      <p>${t(`model_note.${kind}`, { name })} ${more}</p>
      ${
        suggestions.length > 0
          ? html`<div class="suggestions" role="group" aria-label=${t("model_note.try_saying")}>
              <span class="label">${t("model_note.try_saying")}</span>${suggestions.map(chip)}
            </div>`
          : nothing
      }
      ${fetchNote(status)}
    </div>`;
}

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
