// @ts-check
/** A button that does something on the server: asks first if it has to, once at a time, and reports. */

import { fill, h, icon, on } from "../shared/dom.js";
import { toast } from "../shared/toast.js";
import { isRefusal } from "./admin-api.js";
import { failureText } from "./words.js";
import { t } from "../shared/i18n.js";

/** @typedef {{text: string, action?: {label: string, run: () => void}} | string} Report */

/**
 * @typedef {Object} Deed
 * @property {string} about what it is done to, for the words when it fails
 * @property {() => Question} [question] asked first
 * @property {() => Promise<unknown>} run
 * @property {() => Report} done the report afterwards
 * @property {() => Promise<unknown>} [after] bring the figures up to date
 */

/**
 * Does it.
 *
 * @param {Deed} deed
 * @returns {Promise<boolean>} whether it was done
 */
export async function act({ about, question, run, done, after }) {
  if (question && !(await ask(question()))) return false;
  try {
    await run();
    const report = done();
    if (typeof report === "string") toast(report);
    else toast(report.text, { action: report.action });
    return true;
  } catch (error) {
    if (!isRefusal(error)) toast(failureText(error, about), { shownMs: 10_000 });
    return false;
  } finally {
    await after?.();
  }
}

/**
 * @typedef {Object} ActionButton
 * @property {HTMLButtonElement} node
 * @property {(look: {label: string, name?: string, isPossible?: boolean}) => void} draw `name` tells
 *   screen readers what it is done to
 */

/**
 * @param {{icon?: string, kind?: "danger" | "quiet" | "primary", isIconOnly?: boolean, deed: () => Deed}} options
 * @returns {ActionButton}
 */
export function actionButton({ icon: picture, kind, isIconOnly = false, deed }) {
  const node = h("button", {
    type: "button",
    class: `button ${kind ? `button-${kind}` : ""} ${isIconOnly ? "button-icon" : ""}`,
  });
  let isBusy = false;
  let isPossible = true;
  let shown = "";
  const mark = () => {
    node.setAttribute("aria-disabled", String(isBusy || !isPossible));
    node.setAttribute("aria-busy", String(isBusy));
  };
  on(node, "click", async () => {
    if (isBusy || !isPossible) return;
    isBusy = true;
    mark();
    try {
      await act(deed());
    } finally {
      isBusy = false;
      mark();
    }
  });
  return {
    node,
    draw({ label, name = "", isPossible: may = true }) {
      isPossible = may;
      mark();
      if (shown === label + name) return;
      shown = label + name;
      fill(node, picture && icon(picture), isIconOnly ? null : h("span", {}, label));
      node.setAttribute("aria-label", name ? `${label}: ${name}` : label);
      if (isIconOnly) node.title = label;
    },
  };
}

// Asks before something is done that cannot be taken back; the question names the thing.

/**
 * @typedef {Object} Question
 * @property {string} title
 * @property {string} text what becomes of it
 * @property {string} confirm what the button says
 */

/**
 * @param {Question} question
 * @returns {Promise<boolean>}
 */
function ask({ title, text, confirm }) {
  const no = h("button", { type: "submit", value: "no", class: "button", autofocus: true }, t("common.cancel"));
  const yes = h("button", { type: "submit", value: "yes", class: "button button-danger" }, confirm);
  const dialog = h(
    "dialog",
    { class: "admin-ask", "aria-labelledby": "ask-title", "aria-describedby": "ask-text" },
    h(
      "form",
      { method: "dialog", class: "stack" },
      h("h2", { id: "ask-title" }, title),
      h("p", { id: "ask-text" }, text),
      h("div", { class: "row ask-buttons" }, no, yes),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    on(dialog, "close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}
