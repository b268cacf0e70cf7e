// @ts-check
/** Asks before something is done that cannot be taken back; the question names the thing. */

import { h, on } from "../shared/dom.js";
import { t } from "../shared/i18n.js";

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
export function ask({ title, text, confirm }) {
  const no = h("button", { type: "submit", value: "no", class: "button", autofocus: true }, t("common.cancel"));
  const yes = h("button", { type: "submit", value: "yes", class: "button button-danger" }, confirm);
  const dialog = h(
    "dialog",
    { class: "admin-ask", "aria-labelledby": "ask-title", "aria-describedby": "ask-text" },
    h("form", { method: "dialog", class: "stack" },
      h("h2", { id: "ask-title" }, title),
      h("p", { id: "ask-text" }, text),
      h("div", { class: "row ask-buttons" }, no, yes)),
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
