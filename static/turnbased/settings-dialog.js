// @ts-check
/**
 * The settings of the chat page: a drawer at the side.
 */

import { byId, on } from "../shared/dom.js";
import { bindSettings } from "../shared/settings-form.js";

/** @param {import("../shared/settings-store.js").SettingsStore<typeof import("./chat-settings.js").FIELDS>} settings */
export function mountChatSettings(settings) {
  const dialog = byId("settings", HTMLDialogElement);
  // Some switches stand beside the text box, so the whole page is bound.
  bindSettings(document.body, /** @type {import("../shared/settings-form.js").AnyStore} */ (/** @type {unknown} */ (settings)));
  on(byId("open-settings", HTMLButtonElement), "click", () => dialog.showModal());
  on(byId("reset-settings", HTMLButtonElement), "click", () => settings.reset());
  for (const shut of document.querySelectorAll("dialog [data-action=shut]")) {
    on(shut, "click", () => shut.closest("dialog")?.close());
  }
  // A click beside a drawer lands on the dialog itself.
  for (const one of document.querySelectorAll("dialog")) {
    on(one, "click", (event) => {
      if (event.target === one) one.close();
    });
  }
}
