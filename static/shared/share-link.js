// @ts-check
/**
 * A link to copy, to open and to hand to other programs of the device.
 */

import { copyText } from "./copy-text.js";
import { fill, h, icon, on } from "./dom.js";
import { onLangChange, t } from "./i18n.js";
import { toast } from "./toast.js";

const TOAST_MS = 5_000;

/** @param {string} recordingId @returns {string} */
export function linkOf(recordingId) {
  return new URL(`/s/${encodeURIComponent(recordingId)}`, location.href).href;
}

/**
 * @param {HTMLElement} el
 * @param {{id: string}} options
 */
export function mountShareLink(el, { id }) {
  const field = h("input", { type: "text", id, readonly: true, class: "mono share-url", spellcheck: "false" });
  const label = h("label", { for: id });
  const copy = h("button", { type: "button", class: "button", dataset: { action: "copy-share-link" } });
  const open = h("a", { class: "button", dataset: { action: "open-share-link" } });
  const pass = h("button", { type: "button", class: "button", hidden: true, dataset: { action: "pass-on" } });
  el.classList.add("share-link", "stack-tight");
  el.replaceChildren(h("div", { class: "field" }, label, field), h("div", { class: "row" }, copy, open, pass));
  el.hidden = true;

  const draw = () => {
    label.textContent = t("share.link");
    fill(copy, icon("copy"), t("share.copy"));
    fill(open, icon("play"), t("share.open"));
    fill(pass, icon("share"), t("share.pass_on"));
    pass.hidden = typeof navigator.share !== "function";
  };
  const copyNow = async () => {
    const isCopied = await copyText(field.value, field);
    toast(t(isCopied ? "share.copied" : "share.select"), { shownMs: TOAST_MS });
    return isCopied;
  };
  on(copy, "click", () => void copyNow());
  on(field, "focus", () => field.select());
  on(pass, "click", () => {
    // Whoever closes the device's own dialog has not done anything wrong.
    navigator.share({ title: t("share.pass_title"), url: field.value }).catch(() => undefined);
  });
  const off = onLangChange(draw);
  draw();

  return {
    copy: copyNow,
    /** @param {string | null} url null hides it */
    update(url) {
      el.hidden = url === null;
      field.value = url ?? "";
      if (url) open.href = url;
    },
    close: off,
  };
}
