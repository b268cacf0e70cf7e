// @ts-check
/**
 * A place on the page that says what is wrong and what to do next.
 */

import { fill, h, icon } from "./dom.js";
import { onLangChange } from "./i18n.js";
import { problemText } from "./problems.js";

/**
 * @typedef {Object} NoticeAction
 * @property {() => string} label
 * @property {() => void} [run]
 * @property {string} [href] a link in place of a button
 */

/**
 * @param {HTMLElement} el stays empty and hidden until something is shown
 */
export function mountNotice(el) {
  el.setAttribute("role", "alert");
  el.hidden = true;
  /** @type {(() => void) | null} */
  let draw = null;
  onLangChange(() => draw?.());

  return {
    /**
     * Shows a problem until it is cleared.
     *
     * @param {string | {code?: string, message?: string}} problem
     * @param {{kind?: "bad" | "caution" | "good", params?: Record<string, string | number>,
     *   actions?: NoticeAction[]}} [options]
     */
    show(problem, { kind = "bad", params, actions = [] } = {}) {
      draw = () => {
        const { code, title, nextStep, detail } = problemText(problem, params);
        el.dataset.code = code;
        fill(
          el,
          h(
            "div",
            { class: "notice", dataset: { kind } },
            icon(kind === "good" ? "check" : "warning"),
            h(
              "div",
              { class: "stack-tight" },
              h("p", { class: "notice-title" }, title),
              h("p", {}, nextStep),
              detail && h("p", { class: "small soft" }, detail),
              actions.length > 0 && h("div", { class: "row" }, actions.map(actionNode)),
            ),
          ),
        );
      };
      draw();
      el.hidden = false;
    },
    clear() {
      draw = null;
      el.hidden = true;
      delete el.dataset.code;
      fill(el);
    },
  };
}

/** @param {NoticeAction} action */
function actionNode({ label, run, href }) {
  if (href) return h("a", { class: "button", href }, label());
  return h("button", { type: "button", class: "button", on: { click: () => run?.() } }, label());
}
