// @ts-check
/**
 * The settings of a live page: a drawer at the side.
 */

import { find, on } from "../../shared/dom.js";
import { toastProblem } from "../../shared/toast.js";
import { bindSettings } from "../../shared/settings-form.js";

/**
 * @param {HTMLDialogElement} dialog
 * @param {HTMLButtonElement} opener
 * @param {import("../../shared/settings-form.js").AnyStore} store
 * @param {() => Promise<unknown>} loadContent brings in what only the open drawer shows; done before is done
 */
export function mountSettingsDrawer(dialog, opener, store, loadContent) {
  bindSettings(dialog, store);
  const open = () => {
    dialog.showModal();
    loadContent().catch(toastProblem);
  };
  on(opener, "click", open);
  on(find(dialog, "[data-action=close-settings]", HTMLButtonElement), "click", () => dialog.close());
  on(find(dialog, "[data-action=reset-settings]", HTMLButtonElement), "click", () => store.reset());
  // A click beside the drawer lands on the dialog itself.
  on(dialog, "click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return { open, close: () => dialog.close() };
}
