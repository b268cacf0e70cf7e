// @ts-check
/**
 * Changes a question that was asked: its text, and which of its attachments stay.
 */

import { fill, h, on } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { makeChip } from "./media-view.js";

/** @typedef {import("./media-part.js").MediaPart} MediaPart */

const MOST_ROWS = 12;

/**
 * @param {string} text
 * @param {readonly MediaPart[]} media
 * @param {{onSend: (text: string, media: readonly MediaPart[]) => void, onCancel: () => void}} options
 */
export function makeQuestionEditor(text, media, { onSend, onCancel }) {
  let parts = [...media];
  /** @type {import("./media-view.js").Shown[]} */
  let chips = [];
  const list = h("ul", { class: "chips" });
  const area = h("textarea", {
    "aria-label": t("chat.edit"),
    rows: Math.min(MOST_ROWS, text.split("\n").length + 1),
    value: text,
  });
  const send = h("button", { type: "button", class: "button button-primary" }, t("chat.ask_again"));
  const cancel = h("button", { type: "button", class: "button" }, t("common.cancel"));
  const hint = h("p", { class: "small soft" }, t("chat.edit_hint"));

  const draw = () => {
    chips.forEach((chip) => chip.close());
    chips = parts.map((part, index) =>
      makeChip(part, {
        picturesPerS: 1,
        onRemove: () => {
          parts = parts.toSpliced(index, 1);
          draw();
          area.focus();
        },
      }),
    );
    fill(
      list,
      chips.map((chip) => chip.node),
    );
    list.hidden = chips.length === 0;
    send.disabled = area.value.trim() === "" && parts.length === 0;
  };
  const submit = () => {
    if (!send.disabled) onSend(area.value, parts);
  };
  on(send, "click", submit);
  on(cancel, "click", onCancel);
  on(area, "input", draw);
  on(area, "keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      onCancel();
    }
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  draw();
  const node = h("div", { class: "question-editor stack-tight" }, list, area, hint, h("div", { class: "row" }, send, cancel));
  return {
    node,
    focus() {
      area.focus();
      area.setSelectionRange(area.value.length, area.value.length);
    },
    close: () => chips.forEach((chip) => chip.close()),
  };
}
