// @ts-check
/**
 * The settings of a live page: a drawer at the side.
 */

import { find, on } from "../../shared/dom.js";
import { bindSettings } from "../../shared/settings-form.js";

/**
 * @param {HTMLDialogElement} dialog
 * @param {HTMLButtonElement} opener
 * @param {import("../../shared/settings-form.js").AnyStore} store
 */
export function mountSettingsDrawer(dialog, opener, store) {
  bindSettings(dialog, store);
  on(opener, "click", () => dialog.showModal());
  on(find(dialog, "[data-action=close-settings]", HTMLButtonElement), "click", () => dialog.close());
  on(find(dialog, "[data-action=reset-settings]", HTMLButtonElement), "click", () => store.reset());
  // A click beside the drawer lands on the dialog itself.
  on(dialog, "click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return { open: () => dialog.showModal(), close: () => dialog.close() };
}
