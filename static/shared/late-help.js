// @ts-check
/**
 * The help button of a page: questions and answers are loaded with the first click.
 */

import { byId, on } from "./dom.js";

/** @param {import("./faq-sidebar.js").FaqMode} mode */
export function mountLateHelp(mode) {
  const opener = byId("open-faq", HTMLButtonElement);
  const load = async () => {
    const { mountFaqSidebar } = await import("./faq-sidebar.js");
    mountFaqSidebar(byId("faq", HTMLElement), { mode, opener }).open();
  };
  on(opener, "click", () => void load(), { once: true });
}
