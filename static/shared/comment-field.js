// @ts-check
/** A field for a comment that counts its characters. */

import { formatNumber } from "./formats.js";
import { t } from "./i18n.js";
import { html, live } from "./lit.js";
import { MAX_COMMENT_CHARS } from "./share-rules.js";

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
