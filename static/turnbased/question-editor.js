// @ts-check
/** Changes a question that was asked: its text, and which of its attachments stay. */

import { t } from "../shared/i18n.js";
import { html, live } from "../shared/lit.js";
import { chipView, createShelf } from "./media-view.js";

/** @typedef {import("./media-part.js").MediaPart} MediaPart */

const MOST_ROWS = 12;

/**
 * @param {string} text
 * @param {readonly MediaPart[]} media
 * @param {{draw: () => void, onSend: (text: string, media: readonly MediaPart[]) => void, onCancel: () => void}} options
 * @returns {() => unknown} the view
 */
export function openQuestionEditor(text, media, { draw, onSend, onCancel }) {
  const shelf = createShelf();
  const rows = Math.min(MOST_ROWS, text.split("\n").length + 1);
  let words = text;
  let parts = [...media];
  const isEmpty = () => words.trim() === "" && parts.length === 0;
  const submit = () => {
    if (isEmpty()) return;
    shelf.keepOnly([]);
    onSend(words, parts);
  };
  const cancel = () => {
    shelf.keepOnly([]);
    onCancel();
  };
  /** @param {MediaPart} part */
  const remove = (part) => {
    parts = parts.filter((one) => one !== part);
    shelf.keepOnly(parts);
    draw();
  };
  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    }
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  };
  /** @param {{target: HTMLTextAreaElement}} event */
  const onInput = ({ target }) => {
    words = target.value;
    draw();
  };
  return () =>
    html`<div class="question-editor stack-tight">
      <ul class="chips" ?hidden=${parts.length === 0}>
        ${parts.map((part) => chipView(part, shelf, { picturesPerS: 1, onRemove: () => remove(part) }))}
      </ul>
      <textarea aria-label=${t("chat.edit")} rows=${rows} .value=${live(words)} @input=${onInput} @keydown=${onKey}></textarea>
      <p class="small soft">${t("chat.edit_hint")}</p>
      <div class="row">
        <button type="button" class="button button-primary" ?disabled=${isEmpty()} @click=${submit}>
          ${t("chat.ask_again")}
        </button>
        <button type="button" class="button" @click=${cancel}>${t("common.cancel")}</button>
      </div>
    </div>`;
}
