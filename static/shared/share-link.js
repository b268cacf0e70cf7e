// @ts-check
/** A link to copy, to open and to hand to other programs of the device; and a field for a comment beside it. */

import { formatNumber } from "./formats.js";
import { t } from "./texts.js";
import { html, icon, live } from "./lit.js";
import { toast } from "./notice.js";
import { MAX_COMMENT_CHARS } from "./share-rules.js";

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

// A field for a comment that counts its characters.

const NEARLY = 0.9; // from here on the count is announced

/** @param {{id: string, value: string, onInput: (text: string) => void, labelKey?: string, maxChars?: number}} options */
export function commentField({ id, value, onInput, labelKey = "share.comment", maxChars = MAX_COMMENT_CHARS }) {
  const count = t("share.count", { n: formatNumber(value.length), max: formatNumber(maxChars) });
  return html`<div class="field">
    <label for=${id}>${t(labelKey)}</label>
    <textarea
      id=${id}
      rows="3"
      maxlength=${maxChars}
      aria-describedby="${id}-count"
      placeholder=${t("share.comment_hint")}
      .value=${live(value)}
      @input=${(/** @type {{target: HTMLTextAreaElement}} */ { target }) => onInput(target.value)}
    ></textarea>
    <span id="${id}-count" class="hint number comment-count">${count}</span>
    <span class="visually-hidden" role="status">${value.length >= maxChars * NEARLY ? count : ""}</span>
  </div>`;
}

// Puts text on the clipboard, or selects it where the browser does not allow that.

/**
 * @param {string} text
 * @param {HTMLInputElement} [field] that shows the text; it is selected if copying fails
 * @returns {Promise<boolean>} whether it was copied
 */
export async function copyText(text, field) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    field?.focus();
    field?.select();
    return field !== undefined && copySelection();
  }
}

/** The old way: the only one on pages without TLS. */
function copySelection() {
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  }
}
