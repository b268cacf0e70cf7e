// @ts-check
/**
 * A field for a comment that counts its characters.
 */

import { h, on, setText } from "./dom.js";
import { formatNumber } from "./formats.js";
import { onLangChange, t } from "./i18n.js";
import { MAX_COMMENT_CHARS } from "./share-rules.js";

const ROWS = 3;
const NEARLY = 0.9; // from here on the count is announced

/**
 * @param {HTMLElement} el
 * @param {{id: string, labelKey?: string, maxChars?: number, onInput?: () => void}} options
 */
export function mountCommentField(el, { id, labelKey = "share.comment", maxChars = MAX_COMMENT_CHARS, onInput }) {
  const area = h("textarea", { id, rows: ROWS, maxlength: maxChars, "aria-describedby": `${id}-count` });
  const label = h("label", { for: id });
  const count = h("span", { id: `${id}-count`, class: "hint number comment-count" });
  const spoken = h("span", { class: "visually-hidden", role: "status" });
  el.classList.add("field");
  el.replaceChildren(label, area, count, spoken);

  const update = () => {
    const used = area.value.length;
    const text = t("share.count", { n: formatNumber(used), max: formatNumber(maxChars) });
    label.textContent = t(labelKey);
    area.placeholder = t("share.comment_hint");
    setText(count, text);
    setText(spoken, used >= maxChars * NEARLY ? text : "");
  };
  on(area, "input", () => {
    update();
    onInput?.();
  });
  const off = onLangChange(update);
  update();

  return {
    area,
    get value() {
      return area.value.trim();
    },
    set value(text) {
      area.value = text;
      update();
    },
    update,
    close: off,
  };
}
