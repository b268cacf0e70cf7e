/** Editor of a conversation's system content: an ordered list of texts, voices and pictures. */

import { t } from "./texts.js";
import { fileButton, html, iconButton, live, mountView, repeat, textButton } from "./lit.js";
import { bytesToBase64 } from "./pcm.js";
import { mountRefAudioPlayer } from "./ref-audio-player.js";
import { emptyItem, moveItem } from "./prompt.js";

/** @import { ContentItem, ImageItem, ItemKind, VoiceLimits } from "./prompt.js" */

const MOST_ITEMS = 16; // our own limit
const MOST_CHARACTERS = 100_000;

/** @typedef {{item: ContentItem, box: HTMLElement | null, close: () => void}} Row `box` holds the player of a voice */

/** @type {ItemKind[]} */ const KINDS = ["text", "audio", "image"];

/**
 * @typedef {Object} EditorOptions
 * @property {VoiceLimits} limits
 * @property {(items: readonly ContentItem[]) => void} [onChange] the visitor changed something
 *
 * @typedef {{readonly items: readonly ContentItem[], setItems: (items: readonly ContentItem[]) => void}} SystemContentEditor
 *   `setItems` emits no event
 */

/** @param {HTMLElement} el @param {EditorOptions} options @returns {SystemContentEditor} */
export function mountSystemContentEditor(el, { limits, onChange }) {
  /** @type {Row[]} */ let rows = [];
  let spoken = "";
  const items = () => rows.map(({ item }) => item);
  const changed = () => {
    draw();
    onChange?.(items());
  };
  /** @param {ContentItem} item @returns {Row} */
  const makeRow = (item) => {
    if (item.type !== "audio") return { item, box: null, close: () => {} };
    const box = document.createElement("div");
    /** @type {Row} */ const row = { item, box, close: () => player.close() };
    const player = mountRefAudioPlayer(box, {
      limits,
      label: () => nameOf(row),
      onChange(voice) {
        row.item = { type: "audio", voice };
        changed();
      },
    });
    player.set(item.voice);
    return row;
  };
  /** @param {Row} row */
  const nameOf = (row) => t("content.item", { n: rows.indexOf(row) + 1, kind: t(`content.kind_${row.item.type}`) });
  const focusIn = (/** @type {number} */ index, /** @type {string} */ selector) => {
    const node = el.querySelectorAll(".content-item")[index];
    const found = node?.querySelector(selector) ?? node?.querySelector("button:not(:disabled)");
    if (found instanceof HTMLElement) found.focus();
  };
  const add = (/** @type {ItemKind} */ kind) => {
    rows = [...rows, makeRow(emptyItem(kind))];
    changed();
    focusIn(rows.length - 1, "textarea, .voice-actions button, .row > button");
  };
  /** @param {Row} row @param {number} step @param {string} [goTo] selector of the control to focus afterwards */
  const move = (row, step, goTo = `[data-action="${step < 0 ? "up" : "down"}"]:not(:disabled)`) => {
    rows = moveItem(rows, rows.indexOf(row), step);
    const target = rows.indexOf(row);
    spoken = t("content.moved", { n: target + 1, of: rows.length });
    changed();
    focusIn(target, goTo);
  };
  const remove = (/** @type {Row} */ row) => {
    const index = rows.indexOf(row);
    row.close();
    rows = rows.toSpliced(index, 1);
    spoken = t("content.removed");
    changed();
    if (rows.length) focusIn(Math.min(index, rows.length - 1), "[data-action=remove]");
    else el.querySelector("button")?.focus();
  };
  const rowView = (/** @type {Row} */ row) => {
    const [name, index] = [nameOf(row), rows.indexOf(row)];
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
      event.preventDefault();
      const step = event.key === "ArrowUp" ? -1 : 1;
      if (index + step < 0 || index + step >= rows.length) return;
      move(row, step, event.target instanceof HTMLTextAreaElement ? "textarea" : undefined);
    };
    /** @param {string} sign @param {string} action @param {string} words @param {() => void} run @param {boolean} isOff */
    const button = (sign, action, words, run, isOff) =>
      iconButton(sign, words, run, { label: `${words}: ${name}`, action, isOff });
    return html`<li class="content-item" data-kind=${row.item.type} @keydown=${onKey}>
      <div class="spread">
        <span class="label small">${name}</span>
        <div class="content-tools">
          ${button("up", "up", t("content.up"), () => move(row, -1), index === 0)}
          ${button("down", "down", t("content.down"), () => move(row, 1), index === rows.length - 1)}
          ${button("trash", "remove", t("common.delete"), () => remove(row), false)}
        </div>
      </div>
      ${row.box ?? bodyOf(row, name)}
    </li>`;
  };
  const bodyOf = (/** @type {Row} */ row, /** @type {string} */ name) => {
    if (row.item.type === "image") return imageBody(row.item, (item) => ((row.item = item), changed()));
    const onInput = (/** @type {{target: HTMLTextAreaElement}} */ { target }) => {
      row.item = { type: "text", text: target.value };
      onChange?.(items());
    };
    return html`<textarea
      rows="3"
      maxlength=${MOST_CHARACTERS}
      aria-label=${name}
      placeholder=${t("content.text_hint")}
      .value=${live(row.item.type === "text" ? row.item.text : "")}
      @input=${onInput}
    ></textarea>`;
  };
  const draw = mountView(
    el,
    () =>
      html`<ol class="content-list">
          ${rows.length ? repeat(rows, (row) => row, rowView) : html`<li class="empty small">${t("content.empty")}</li>`}
        </ol>
        <div class="row">
          ${KINDS.map((kind) =>
            textButton(t(`content.add_${kind}`), () => add(kind), { sign: "plus", isOff: rows.length >= MOST_ITEMS }),
          )}
        </div>
        <p class="visually-hidden" role="status">${spoken}</p>`,
  );

  return {
    get items() {
      return items();
    },
    setItems(next) {
      rows.forEach((row) => row.close());
      rows = next.map(makeRow);
      draw();
    },
  };
}

/** @param {ImageItem} item @param {(item: ContentItem) => void} change */
function imageBody({ name, data }, change) {
  const take = async (/** @type {File} */ file) =>
    change({ type: "image", name: file.name, data: bytesToBase64(new Uint8Array(await file.arrayBuffer())) });
  return html`<div class="row">
    <img class="content-picture" alt=${name} ?hidden=${!data} src="data:image/*;base64,${data}" />
    ${fileButton(t(data ? "content.other_image" : "content.choose_image"), take, { accept: "image/*", sign: "image" })}
  </div>`;
}
