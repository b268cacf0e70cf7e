// @ts-check
/**
 * The help button of a page: questions and answers are loaded with the first click.
 */

import { byId, on } from "./dom.js";
import { late } from "./late.js";
import { toastProblem } from "./toast.js";

const loadSidebar = late(() => import("./faq-sidebar.js"));

/** @param {import("./faq-sidebar.js").FaqMode} mode */
export function mountLateHelp(mode) {
  const opener = byId("open-faq", HTMLButtonElement);
  const end = on(opener, "click", () => void load());
  const load = async () => {
    try {
      const { mountFaqSidebar } = await loadSidebar();
      end();
      mountFaqSidebar(byId("faq", HTMLElement), { mode, opener }).open();
    } catch (error) {
      toastProblem(/** @type {import("./late.js").MissingPartError} */ (error));
    }
  };
}
