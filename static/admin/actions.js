// @ts-check
/** Buttons that do something on the server: they ask first if they have to, act once at a time, and report. */

import { find, on } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { html, icon, nothing, render } from "../shared/lit.js";
import { toast } from "../shared/notice.js";
import { isRefusal } from "./admin-api.js";
import { failureText } from "./words.js";

/** @typedef {{text: string, action?: {label: string, run: () => void}} | string} Report */
/** @typedef {{title: string, text: string, confirm: string}} Question `text` says what becomes of it */

/**
 * @typedef {Object} Deed
 * @property {string} about what it is done to, for the words when it fails
 * @property {() => Question} [question] asked first
 * @property {() => Promise<unknown>} run
 * @property {() => Report} done the report afterwards
 * @property {() => Promise<unknown>} [after] bring the figures up to date
 */

/** @param {Deed} deed @returns {Promise<boolean>} whether it was done */
export async function act({ about, question, run, done, after }) {
  if (question && !(await ask(question()))) return false;
  try {
    await run();
    const report = done();
    if (typeof report === "string") toast(report);
    else toast(report.text, { action: report.action });
    return true;
  } catch (error) {
    reportFailure(error, about);
    return false;
  } finally {
    await after?.();
  }
}

/** @param {unknown} error @param {string} about */
export function reportFailure(error, about) {
  if (!isRefusal(error)) toast(failureText(error, about), { shownMs: 10_000 });
}

/**
 * @param {{icon: string, label: string, name: string, kind?: "danger", isIconOnly?: boolean, isPossible?: boolean, deed: Deed}} look
 *   `name` tells screen readers what it is done to
 */
export function actionButton({ icon: picture, label, name, kind, isIconOnly = false, isPossible = true, deed }) {
  /** @param {MouseEvent & {currentTarget: HTMLButtonElement}} event */
  const press = async ({ currentTarget: button }) => {
    if (!isPossible || button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true");
    await act(deed);
    button.setAttribute("aria-busy", "false");
  };
  return html`<button
    type="button"
    class="button ${kind ? `button-${kind}` : ""} ${isIconOnly ? "button-icon" : ""}"
    aria-busy="false"
    aria-disabled=${String(!isPossible)}
    aria-label="${label}: ${name}"
    title=${isIconOnly ? label : nothing}
    @click=${press}
  >
    ${icon(picture)}${isIconOnly ? nothing : html`<span>${label}</span>`}
  </button>`;
}

/** Asks before something is done that cannot be taken back. @param {Question} question @returns {Promise<boolean>} */
function ask({ title, text, confirm }) {
  const place = document.createElement("div");
  document.body.append(place);
  render(
    html`<dialog class="admin-ask" aria-labelledby="ask-title" aria-describedby="ask-text">
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
      // A message that was shown above the dialog moves out of it first.
      queueMicrotask(() => place.remove());
      resolve(dialog.returnValue === "yes");
    });
  });
}
