// @ts-check
/** A link to copy, to open and to hand to other programs of the device. */

import { copyText } from "./copy-text.js";
import { t } from "./i18n.js";
import { html, icon } from "./lit.js";
import { toast } from "./toast.js";

const TOAST_MS = 5_000;

/** @param {string} recordingId @returns {string} */
export function linkOf(recordingId) {
  return new URL(`/s/${encodeURIComponent(recordingId)}`, location.href).href;
}

/** @param {string} url @param {string} fieldId of the field that shows it */
export async function copyLink(url, fieldId) {
  const field = /** @type {HTMLInputElement | null} */ (document.getElementById(fieldId));
  const isCopied = await copyText(url, field ?? undefined);
  toast(t(isCopied ? "share.copied" : "share.select"), { shownMs: TOAST_MS });
}

/** @param {{id: string, url: string | null}} options null hides it */
export const shareLink = ({ id, url }) =>
  html`<div class="share-link stack-tight" ?hidden=${url === null}>
    <div class="field">
      <label for=${id}>${t("share.link")}</label>
      <input
        type="text"
        id=${id}
        readonly
        class="mono share-url"
        spellcheck="false"
        .value=${url ?? ""}
        @focus=${(/** @type {{target: HTMLInputElement}} */ { target }) => target.select()}
      />
    </div>
    <div class="row">
      <button type="button" class="button" data-action="copy-share-link" @click=${() => void copyLink(url ?? "", id)}>
        ${icon("copy")}${t("share.copy")}
      </button>
      <a class="button" data-action="open-share-link" href=${url ?? ""}>${icon("play")}${t("share.open")}</a>
      <button
        type="button"
        class="button"
        data-action="pass-on"
        ?hidden=${typeof navigator.share !== "function"}
        @click=${() => void passOn(url ?? "")}
      >
        ${icon("share")}${t("share.pass_on")}
      </button>
    </div>
  </div>`;

/** Whoever closes the device's own dialog has not done anything wrong. @param {string} url */
function passOn(url) {
  return navigator.share({ title: t("share.pass_title"), url }).catch(() => undefined);
}
