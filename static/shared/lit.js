/**
 * What views use: lit-html, typed access to elements and events, common controls, rendering that preserves focus, and notices
 * and toasts that state a problem and the next step.
 */

import { on } from "./async.js";
import { formatBytes, onLangChange, problemText, problemWords, t } from "./texts.js";
import { html, nothing, render as renderInto } from "/static/vendor/lit-html/lit-html.js";
import { guard } from "/static/vendor/lit-html/directives/guard.js";
import { live } from "/static/vendor/lit-html/directives/live.js";
import { repeat } from "/static/vendor/lit-html/directives/repeat.js";

/** @template {Element} [E=HTMLElement] @param {string} id @param {new () => E} [kind] @returns {E} */
export const byId = (id, kind) => find(document, `#${id}`, kind);

/** @template {Element} [E=HTMLElement] @param {ParentNode} root @param {string} selector @param {new () => E} [kind] @returns {E} */
export function find(root, selector, kind = /** @type {new () => any} */ (HTMLElement)) {
  const found = root.querySelector(selector);
  if (!(found instanceof kind)) throw new Error(`There is no ${kind.name} at ${selector}.`);
  return found;
}

/** Sets the text only if it differs, so that screen readers announce real changes only. @param {Element} element @param {string} text */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export { guard, html, live, nothing, on, repeat };

/** @typedef {import("lit-html").TemplateResult | typeof nothing} View */

const SPRITE = "/static/shared/icons/sprite.svg";
const FOCUSABLE = "button, a[href], input, select, textarea, summary";

/** An icon of shared/icons/sprite.svg. It is hidden from screen readers, so the control needs a label. @param {string} name */
export const icon = (name) =>
  html`<svg class="icon" aria-hidden="true" focusable="false"><use href=${`${SPRITE}#${name}`}></use></svg>`;

/**
 * @typedef {Object} ButtonLook
 * @property {string} [sign] icon before the words
 * @property {string} [label] overrides the accessible name
 * @property {string} [title] tooltip
 * @property {string} [style] classes
 * @property {string} [action] `data-action`
 * @property {string} [id]
 * @property {boolean} [isShown]
 * @property {boolean} [isOff]
 * @property {boolean} [isIdle] disabled by aria-disabled only, so that it keeps the focus
 * @property {boolean} [isPressed] makes it a toggle button
 * @property {boolean} [isExpanded] whether the element with the id `controls` is shown
 * @property {string} [controls]
 */

/** @param {unknown} words @param {(event: any) => void} run `any`: each listener has its own @param {ButtonLook} [look] */
export function textButton(words, run, look = {}) {
  const { sign, label, title, style = "", action, id, isShown = true, isOff = false, isIdle } = look;
  return html`<button
    type="button"
    class="button ${style}"
    id=${id ?? nothing}
    aria-label=${label ?? nothing}
    title=${title ?? nothing}
    aria-disabled=${isIdle ?? nothing}
    aria-pressed=${look.isPressed ?? nothing}
    aria-expanded=${look.isExpanded ?? nothing}
    aria-controls=${look.controls ?? nothing}
    data-action=${action ?? nothing}
    ?hidden=${!isShown}
    ?disabled=${isOff}
    @click=${isIdle ? null : run}
  >
    ${sign ? icon(sign) : nothing}${words}
  </button>`;
}

/**
 * @param {string | View} sign name of an icon, or a template in its place
 * @param {string} words tooltip and label
 * @param {(event: any) => void} run `any`: each listener has its own
 * @param {ButtonLook} [look]
 */
export const iconButton = (sign, words, run, { style = "button-quiet", ...look } = {}) =>
  textButton(typeof sign === "string" ? icon(sign) : sign, run, {
    label: words,
    title: words,
    style: `button-icon ${style}`,
    ...look,
  });

/**
 * A button that opens the file picker.
 * @param {string} words
 * @param {(file: File) => void} take
 * @param {{accept: string, sign: string, action?: string, isIconOnly?: boolean}} look
 */
export function fileButton(words, take, { accept, sign, action, isIconOnly = false }) {
  const ask = (/** @type {Event} */ { currentTarget }) =>
    /** @type {HTMLElement} */ (/** @type {HTMLElement} */ (currentTarget).nextElementSibling).click();
  const onFile = (/** @type {{target: HTMLInputElement}} */ { target }) => {
    const [file] = target.files ?? [];
    target.value = ""; // so that the same file can be chosen again
    if (file) take(file);
  };
  const button = isIconOnly ? iconButton(sign, words, ask, { action, style: "" }) : textButton(words, ask, { sign, action });
  return html`${button}<input type="file" accept=${accept} hidden tabindex="-1" @change=${onFile} />`;
}

/**
 * Replaces an element's content by a view. It is rendered now, on each language change, and whenever the returned function
 * is called.
 * @param {HTMLElement} el
 * @param {() => unknown} view
 */
export function mountView(el, view) {
  const draw = () => render(view(), el);
  const close = onLangChange(draw);
  el.replaceChildren();
  draw();
  return Object.assign(draw, { close });
}

/**
 * Renders into an element. If the focused control disappears, focus moves to the nearest remaining control of the same
 * list, else to the heading of the section, so that keyboard users keep their place.
 * @param {unknown} view
 * @param {HTMLElement} el
 */
export function render(view, el) {
  const focused = document.activeElement;
  const isInside = focused instanceof HTMLElement && el.contains(focused);
  const list = isInside ? (focused.closest("tbody, ul, ol") ?? el) : el;
  const controls = isInside ? [...list.querySelectorAll(FOCUSABLE)] : [];
  renderInto(view, el);
  if (!isInside || (document.activeElement === focused && !focused.closest("[hidden]"))) return;
  const at = controls.indexOf(focused);
  const nearest = [focused, ...controls.slice(at + 1), ...controls.slice(0, Math.max(at, 0)).reverse()];
  const reachable = nearest.find((control) => el.contains(control) && !control.closest("[hidden], :disabled"));
  const target = reachable ?? el.closest("section")?.querySelector("h2");
  if (target instanceof HTMLElement) target.focus({ preventScroll: true });
}

/**
 * @typedef {Object} NoticeAction
 * @property {() => string} label
 * @property {() => void} [run]
 * @property {string} [href] makes it a link
 *
 * @typedef {{code?: string, message?: string}} Problem
 * @typedef {{kind?: "bad" | "caution" | "good", actions?: NoticeAction[]}} NoticeLook
 */

/** @param {string | Problem} problem @param {NoticeLook} [look] */
export function noticeView(problem, { kind = "bad", actions = [] } = {}) {
  const { title, nextStep: next, detail } = problemText(problem);
  const more = actions.length > 0 ? html`<div class="row">${actions.map(actionView)}</div>` : nothing;
  return noticeBox({ kind, sign: icon(kind === "good" ? "check" : "warning"), title, next, detail, more });
}

/** @param {{title: string, next?: string, detail?: string, kind?: string, code?: string, sign: unknown, more?: unknown}} look */
export const noticeBox = ({ title, next, detail, kind, code, sign, more = nothing }) =>
  html`<div class="notice" data-kind=${kind ?? nothing} data-code=${code ?? nothing}>
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
  /** @type {[string | Problem, NoticeLook | undefined] | null} */ let shown = null;
  const draw = mountView(el, () => {
    el.hidden = shown === null;
    return shown ? noticeView(...shown) : nothing;
  });
  return {
    /** Shows a problem until it is cleared. @param {string | Problem} problem @param {NoticeLook} [look] */
    show(problem, look) {
      shown = [problem, look];
      el.dataset.code = problemText(problem).code;
      draw();
    },
    clear() {
      shown = null;
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

/** @param {string} text @param {{action?: {label: string, run: () => void}, shownMs?: number}} [options] @returns removes it */
export function toast(text, { action, shownMs = SHOWN_MS } = {}) {
  const message = document.createElement("div");
  message.className = "toast";
  const act = () => (message.remove(), action?.run());
  render(html`<span>${text}</span>${action ? textButton(action.label, act, { style: "button-quiet" }) : nothing}`, message);
  const place = tray();
  place.append(message);
  while (place.childElementCount > MOST_AT_ONCE) place.firstElementChild?.remove();
  setTimeout(() => message.remove(), shownMs);
  return () => message.remove();
}

/** @param {unknown} problem an error, or its code */
export const toastProblem = (problem) => void toast(problemWords(problem));

// Confirmation of an irreversible action.

/** @typedef {{title: string, text: string, confirm?: string}} Question `text` says what becomes of it, `confirm` labels the button */

/** Asks in a dialog; closing it in any other way than by its button is a no. @param {Question} question @returns {Promise<boolean>} */
export function isConfirmed({ title, text, confirm }) {
  const place = document.createElement("div");
  document.body.append(place);
  render(
    html`<dialog aria-labelledby="ask-title" aria-describedby="ask-text">
      <form method="dialog" class="stack">
        <h2 id="ask-title">${title}</h2>
        <p id="ask-text">${text}</p>
        <div class="row ask-buttons">
          <button type="submit" value="no" class="button" autofocus>${t("common.cancel")}</button>
          <button type="submit" value="yes" class="button button-danger">${confirm}</button>
        </div>
      </form>
    </dialog>`,
    place,
  );
  const dialog = find(place, "dialog", HTMLDialogElement);
  dialog.showModal();
  return new Promise((resolve) => {
    on(dialog, "close", () => {
      // A toast inside the dialog is moved out first.
      queueMicrotask(() => place.remove());
      resolve(dialog.returnValue === "yes");
    });
  });
}

/** Closes a dialog by its button, or by a click on the backdrop, which has the dialog itself as its target. @param {HTMLDialogElement} dialog */
export function closeByClick(dialog) {
  on(dialog, "click", ({ target }) => {
    if (target === dialog || (target instanceof Element && target.closest("[data-action=close]"))) dialog.close();
  });
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
      <p>${t(`model_note.${kind}`, { name })}</p>
      ${more ? html`<p class="small soft">${more}</p>` : nothing}
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
