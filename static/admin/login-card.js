// @ts-check
/** Asks for the administrator's token. */

import { fill, h, icon, on, setText } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { failureText, said } from "./words.js";

/**
 * @typedef {Object} LoginCard
 * @property {(isSignedOut: boolean) => void} askToken
 * @property {(error: unknown) => void} fail the server did not say who may administrate
 * @property {() => void} hide
 */

/**
 * @param {HTMLElement} el
 * @param {{signIn: (token: string) => Promise<void>, retry: () => void}} options
 * @returns {LoginCard}
 */
export function mountLoginCard(el, { signIn, retry }) {
  el.classList.add("admin-login");
  const show = (/** @type {HTMLElement[]} */ ...children) => {
    fill(el, h("div", { class: "card stack" }, children));
    el.hidden = false;
  };
  const heading = (/** @type {string} */ picture, /** @type {string} */ key) =>
    h("div", { class: "row" }, icon(picture), said("h2", key, { id: "login-title", tabindex: -1 }));

  return {
    askToken(isSignedOut) {
      const { form, input } = tokenForm(signIn);
      show(
        heading("lock", "admin.login"),
        said("p", isSignedOut ? "admin.login_again" : "admin.login_lead", { class: "soft" }),
        form,
      );
      input.focus();
    },
    fail(error) {
      const again = said("button", "common.retry", { type: "button", class: "button" });
      on(again, "click", retry);
      show(heading("warning", "admin.unreachable"), h("p", { role: "alert" }, failureText(error, "login")), again);
    },
    hide() {
      el.hidden = true;
      fill(el);
    },
  };
}

/** @param {(token: string) => Promise<void>} signIn */
function tokenForm(signIn) {
  const input = h("input", {
    type: "password",
    id: "token",
    autocomplete: "current-password",
    required: true,
    "aria-describedby": "token-hint token-problem",
  });
  const problem = h("p", { id: "token-problem", class: "field-error", role: "alert" });
  const go = said("button", "admin.login_go", { type: "submit", class: "button button-primary" });
  const form = h(
    "form",
    { class: "stack", novalidate: true, "aria-labelledby": "login-title" },
    h(
      "div",
      { class: "field" },
      said("label", "admin.token", { for: "token" }),
      input,
      said("p", "admin.token_hint", { id: "token-hint", class: "hint" }),
      problem,
    ),
    h("div", {}, go),
  );
  let isBusy = false;
  on(form, "submit", async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    if (isBusy) return;
    if (input.value.trim() === "") return setText(problem, t("admin.token_missing"));
    isBusy = true;
    setText(problem, "");
    go.setAttribute("aria-busy", "true");
    try {
      await signIn(input.value.trim());
    } catch (error) {
      setText(problem, failureText(error, "login"));
      input.setAttribute("aria-invalid", "true");
      input.select();
    } finally {
      isBusy = false;
      go.removeAttribute("aria-busy");
    }
  });
  return { form, input };
}
