// @ts-check
/**
 * A line to type into and a button to show a picture, in the middle of a call.
 */

import { h, icon, on } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { late } from "../../shared/late.js";
import { toastProblem } from "../../shared/toast.js";

/** As the server has it. Source: `core/protocols/rebase.py`. */
const MAX_CHARS = 1_000;
const loadReader = late(() => import("../lib/picture-file.js"));

/**
 * @param {HTMLElement} el
 * @param {{sendText: (text: string) => boolean, sendPicture: (base64: string, name: string) => boolean}} actions
 *   say whether it went out; the text stays if not
 * @returns {{update: (isTalk: boolean) => void}}
 */
export function mountTextField(el, { sendText, sendPicture }) {
  const input = h("input", { type: "text", class: "text-line", maxlength: MAX_CHARS, autocomplete: "off", enterkeyhint: "send", dir: "auto" });
  const file = h("input", { type: "file", accept: "image/*", hidden: true });
  const show = h("button", { type: "button", class: "button button-icon", dataset: { action: "show-picture" } }, icon("image"));
  const send = h("button", { type: "submit", class: "button button-icon" }, icon("send"));
  const form = h("form", { class: "text-form", hidden: true }, input, file, show, send);
  el.append(form);
  on(form, "submit", (event) => {
    event.preventDefault();
    if (input.value.trim() !== "" && sendText(input.value)) input.value = "";
    input.focus();
  });
  on(show, "click", () => file.click());
  on(file, "change", async () => {
    const [chosen] = file.files ?? [];
    file.value = "";
    if (!chosen) return;
    try {
      const { readPicture } = await loadReader();
      sendPicture(await readPicture(chosen), chosen.name);
    } catch {
      toastProblem("bad_frame"); // whatever the browser cannot read
    }
  });
  const name = () => {
    input.setAttribute("aria-label", t("live.type"));
    input.placeholder = t("live.type");
    for (const [button, key] of /** @type {[HTMLElement, string][]} */ ([[show, "live.show_picture"], [send, "live.type_send"]])) {
      button.setAttribute("aria-label", t(key));
      button.title = t(key);
    }
  };
  onLangChange(name);
  name();
  return {
    update(isTalk) {
      form.hidden = !isTalk;
    },
  };
}
