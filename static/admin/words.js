/** Shared views of the sections: tables, action buttons, login, navigation. */

import { html, icon, iconButton, isConfirmed, mountView, nothing, repeat, textButton, toast } from "../shared/lit.js";
import { formatDateTime, t } from "../shared/texts.js";
import { isRefusal } from "./admin-api.js";
import { ago, failureText } from "./admin-texts.js";

/** @import { Question } from "../shared/lit.js" */

/** A time and how long ago it was. @param {string} time */
export const when = (time) =>
  html`<div class="admin-when"><span>${formatDateTime(time)}</span><span class="small soft">${ago(time)}</span></div>`;

// A table whose rows keep their elements while values change.

/**
 * @template T
 * @typedef {{labelKey: string, look?: string, cell: (row: T) => unknown}} TableColumn `look` is a class of its cells
 */

/**
 * @template T
 * @param {string} name of its texts: caption, and `NAME_empty`
 * @param {readonly T[] | null} rows null until loaded
 * @param {(row: T, index: number) => unknown} keyOf
 * @param {TableColumn<T>[]} columns
 * @param {string} [caption]
 */
export function table(name, rows, keyOf, columns, caption = name) {
  if (rows === null) return nothing;
  if (rows.length === 0) return html`<p class="empty">${t(`admin.${name}_empty`)}</p>`;
  const cells = (/** @type {T} */ row) =>
    columns.map(({ labelKey, look, cell }) => html`<td class=${look ?? nothing} data-label=${t(labelKey)}>${cell(row)}</td>`);
  return html`<table class="table">
    <caption class="visually-hidden">
      ${t(`admin.${caption}`)}
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

// Buttons that act on the server: they confirm if necessary, run once at a time, and report the result.

/**
 * @typedef {Object} Operation
 * @property {string} about subject, for error texts
 * @property {() => Question} [question] confirmation
 * @property {() => Promise<unknown>} run
 * @property {() => string} done message on success
 * @property {{label: string, run: () => void}} [undo] offered with the message
 * @property {() => Promise<unknown>} [after] refreshes the section
 */

/** @param {Operation} operation @returns {Promise<boolean>} whether it succeeded */
export async function act({ about, question, run, done, undo, after }) {
  if (question && !(await isConfirmed(question()))) return false;
  try {
    await run();
    toast(done(), { action: undo });
    return true;
  } catch (error) {
    reportFailure(error, about);
    return false;
  } finally {
    await after?.();
  }
}

export function reportFailure(/** @type {unknown} */ error, /** @type {string} */ about) {
  if (!isRefusal(error)) toast(failureText(error, about), { shownMs: 10_000 });
}

/**
 * With a question it is a dangerous action, and its label confirms it.
 * @param {{icon: string, label: string, name: string, isIconOnly?: boolean, isPossible?: boolean} & Operation} look
 *   `name` is the subject, for screen readers
 */
export function actionButton({ icon: picture, label, name, isIconOnly = false, isPossible = true, question, ...operation }) {
  const press = async (/** @type {MouseEvent & {currentTarget: HTMLButtonElement}} */ { currentTarget: button }) => {
    if (button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true");
    await act({ ...operation, question: question && (() => ({ confirm: label, ...question() })) });
    button.setAttribute("aria-busy", "false");
  };
  const look = { label: `${label}: ${name}`, style: question ? "button-danger" : "", isIdle: !isPossible };
  if (isIconOnly) return iconButton(picture, label, press, look);
  return textButton(html`<span>${label}</span>`, press, { ...look, sign: picture });
}

// Login form and section navigation.

/** @typedef {{id: string, icon: string, titleKey: string}} SectionEntry */
/** @typedef {{count: number, kind: "caution" | "bad", label: string} | null} Badge */

/** @typedef {{kind: "token", isSignedOut: boolean, error?: unknown} | {kind: "failure", error: unknown} | null} LoginState */

/**
 * Asks for the token, or shows that the server could not be reached.
 * @param {HTMLElement} el
 * @param {{signIn: (token: string) => Promise<void>, retry: () => void}} options
 */
export function mountLogin(el, { signIn, retry }) {
  /** @type {LoginState} */ let state = null;
  let problem = "";
  let isBusy = false;
  el.classList.add("admin-login");

  const heading = (/** @type {string} */ picture, /** @type {string} */ words) =>
    html`<div class="row">
      ${icon(picture)}
      <h2 id="login-title" tabindex="-1">${words}</h2>
    </div>`;
  const failureView = (/** @type {{error: unknown}} */ { error }) =>
    html`${heading("warning", t("admin.unreachable"))}
      <p role="alert">${failureText(error, "login")}</p>
      <button type="button" class="button" @click=${retry}>${t("common.retry")}</button>`;
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const input = /** @type {HTMLInputElement} */ (/** @type {HTMLFormElement} */ (event.target).elements.namedItem("token"));
    if (isBusy) return;
    isBusy = input.value.trim() !== "";
    problem = isBusy ? "" : t("admin.token_missing");
    draw();
    if (!isBusy) return;
    try {
      await signIn(input.value.trim());
    } catch (error) {
      problem = failureText(error, "login");
      input.select();
    }
    isBusy = false;
    draw();
  };
  const tokenView = (/** @type {{isSignedOut: boolean}} */ { isSignedOut }) =>
    html`${heading("lock", t("admin.login"))}
      <p class="soft">${t(isSignedOut ? "admin.login_again" : "admin.login_lead")}</p>
      <form class="stack" novalidate aria-labelledby="login-title" @submit=${submit}>
        <div class="field">
          <label for="token">${t("admin.token")}</label>
          <input
            type="password"
            id="token"
            autocomplete="current-password"
            required
            aria-describedby="token-hint token-problem"
            aria-invalid=${problem ? "true" : nothing}
          />
          <p id="token-hint" class="hint">${t("admin.token_hint")}</p>
          <p id="token-problem" class="field-error" role="alert">${problem}</p>
        </div>
        <div>
          <button type="submit" class="button button-primary" aria-busy=${String(isBusy)}>${t("admin.login_go")}</button>
        </div>
      </form>`;
  const draw = mountView(el, () => {
    el.hidden = state === null;
    return state && html`<div class="card stack">${state.kind === "token" ? tokenView(state) : failureView(state)}</div>`;
  });
  return (/** @type {LoginState} */ next) => {
    state = next;
    problem = next?.kind === "token" && next.error ? failureText(next.error, "login") : "";
    draw();
    if (state?.kind === "token") document.getElementById("token")?.focus();
  };
}

/** @template {SectionEntry} S @param {HTMLElement} el @param {readonly S[]} sections @param {(section: S) => void} onShow */
export function mountSectionNav(el, sections, onShow) {
  /** @type {Map<string, Badge>} */ const badges = new Map();
  /** @type {S | null} */ let current = null;
  el.classList.add("admin-nav");
  const link = (/** @type {SectionEntry} */ { id, icon: picture, titleKey }) => {
    const badge = badges.get(id);
    return html`<li>
      <a href="#${id}" data-goto=${id} aria-current=${id === current?.id ? "page" : nothing}
        >${icon(picture)}<span>${t(titleKey)}</span>${
          badge ? html`<span class="admin-count" data-kind=${badge.kind} title=${badge.label}>${badge.count}</span>` : nothing
        }</a
      >
    </li>`;
  };
  const draw = mountView(el, () => {
    el.setAttribute("aria-label", t("admin.sections"));
    return html`<ul>
      ${repeat(sections, ({ id }) => id, link)}
    </ul>`;
  });
  /** Scrolls to the current section. On phones the list scrolls sideways; the page itself must not scroll. */
  const reveal = () => {
    const list = el.querySelector("ul");
    const chosen = /** @type {HTMLElement | null} */ (el.querySelector("[aria-current]"));
    if (list && chosen) list.scrollLeft = chosen.offsetLeft - (list.clientWidth - chosen.offsetWidth) / 2;
  };
  const show = () => {
    const asked = location.hash.slice(1);
    const section = sections.find(({ id }) => id === asked) ?? sections[0];
    if (section === current) return;
    current = section;
    draw();
    reveal();
    onShow(section);
  };
  addEventListener("hashchange", show);
  show();
  return {
    reveal,
    setBadge(/** @type {string} */ id, /** @type {Badge} */ badge) {
      badges.set(id, badge);
      draw();
    },
  };
}
