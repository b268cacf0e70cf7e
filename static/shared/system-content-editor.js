// @ts-check
/**
 * Edits the system content of a conversation: an ordered list of texts, voices, pictures.
 */

import { fill, h, icon, on } from "./dom.js";
import { onLangChange, t } from "./i18n.js";
import { bytesToBase64 } from "./pcm.js";
import { mountRefAudioPlayer } from "./ref-audio-player.js";
import { emptyItem, moveItem } from "./system-content.js";

const MOST_ITEMS = 16; // ours: more would be a mistake
const TEXT_ROWS = 3;
const MOST_CHARACTERS = 100_000;

/** @typedef {import("./system-content.js").ContentItem} ContentItem */
/** @typedef {import("./system-content.js").ItemKind} ItemKind */
/** @typedef {{node: HTMLElement, close: () => void}} Row */

/**
 * @typedef {Object} EditorOptions
 * @property {import("./voice.js").VoiceLimits} limits
 * @property {readonly ItemKind[]} [kinds] what can be added
 * @property {(items: readonly ContentItem[]) => void} [onChange] the visitor changed something
 *
 * @typedef {{readonly items: readonly ContentItem[], setItems: (items: readonly ContentItem[]) => void,
 *   close: () => void}} SystemContentEditor `setItems` emits no event
 */

/**
 * @param {HTMLElement} el
 * @param {EditorOptions} options
 * @returns {SystemContentEditor}
 */
export function mountSystemContentEditor(el, { limits, kinds = ["text", "audio"], onChange }) {
  /** @type {ContentItem[]} */
  let items = [];
  /** @type {Row[]} */
  let rows = [];
  const list = h("ol", { class: "content-list" });
  const adders = h("div", { class: "row" });
  const spoken = h("p", { class: "visually-hidden", role: "status" });
  fill(el, list, adders, spoken);

  const draw = () => {
    rows.forEach((row) => row.close());
    rows = items.map((item, index) => makeRow(item, index, items.length, { limits, change, move, remove }));
    fill(list, rows.length ? rows.map((row) => row.node) : h("li", { class: "empty small" }, t("content.empty")));
    drawAdders();
  };
  const drawAdders = () =>
    fill(
      adders,
      kinds.map((kind) => {
        const isFull = items.length >= MOST_ITEMS;
        const button = h("button", { type: "button", class: "button", disabled: isFull }, icon("plus"), t(`content.add_${kind}`));
        button.addEventListener("click", () => add(kind));
        return button;
      }),
    );
  const tell = () => onChange?.(items);
  /** @param {number} index @param {ContentItem} item */
  const change = (index, item) => {
    items = items.with(index, item);
    tell();
  };
  /** @param {ItemKind} kind */
  const add = (kind) => {
    items = [...items, emptyItem(kind)];
    draw();
    tell();
    focusIn(items.length - 1, "textarea, .voice-actions button, .row > button");
  };
  /** @param {number} index @param {number} step @param {string} [goTo] what is focused afterwards */
  const move = (index, step, goTo = `[data-move="${step}"]:not(:disabled)`) => {
    items = moveItem(items, index, step);
    draw();
    tell();
    const target = index + step;
    spoken.textContent = t("content.moved", { n: target + 1, of: items.length });
    focusIn(target, goTo);
  };
  /** @param {number} index */
  const remove = (index) => {
    items = items.toSpliced(index, 1);
    draw();
    tell();
    spoken.textContent = t("content.removed");
    if (items.length) focusIn(Math.min(index, items.length - 1), "[data-remove]");
    else adders.querySelector("button")?.focus();
  };
  /** @param {number} index @param {string} selector */
  const focusIn = (index, selector) => {
    const node = rows[index]?.node;
    const found = node?.querySelector(selector) ?? node?.querySelector("button:not(:disabled)");
    if (found instanceof HTMLElement) found.focus();
  };
  const endLang = onLangChange(draw);
  draw();

  return {
    get items() {
      return items;
    },
    setItems(next) {
      items = [...next];
      draw();
    },
    close() {
      endLang();
      rows.forEach((row) => row.close());
    },
  };
}

/**
 * @typedef {Object} RowTools
 * @property {import("./voice.js").VoiceLimits} limits
 * @property {(index: number, item: ContentItem) => void} change
 * @property {(index: number, step: number, goTo?: string) => void} move
 * @property {(index: number) => void} remove
 */

/**
 * @param {ContentItem} item
 * @param {number} index
 * @param {number} count
 * @param {RowTools} tools
 * @returns {Row}
 */
function makeRow(item, index, count, tools) {
  const name = t("content.item", { n: index + 1, kind: t(`content.kind_${item.type}`) });
  const { node: body, close } = makeBody(item, name, tools.limits, (next) => tools.change(index, next));
  /** @param {string} iconName @param {string} words @param {boolean} isOff @param {Record<string, string | number>} data */
  const button = (iconName, words, isOff, data) =>
    h(
      "button",
      {
        type: "button",
        class: "button button-quiet button-icon",
        "aria-label": `${words}: ${name}`,
        title: words,
        disabled: isOff,
        dataset: data,
      },
      icon(iconName),
    );
  const up = button("up", t("content.up"), index === 0, { move: -1 });
  const down = button("down", t("content.down"), index === count - 1, { move: 1 });
  const gone = button("trash", t("common.delete"), false, { remove: "" });
  on(up, "click", () => tools.move(index, -1));
  on(down, "click", () => tools.move(index, 1));
  on(gone, "click", () => tools.remove(index));
  const head = h(
    "div",
    { class: "spread" },
    h("span", { class: "label small" }, name),
    h("div", { class: "content-tools" }, up, down, gone),
  );
  const node = h("li", { class: "content-item", dataset: { kind: item.type } }, head, body);
  on(node, "keydown", (/** @type {KeyboardEvent} */ event) => {
    if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
    event.preventDefault();
    const step = event.key === "ArrowUp" ? -1 : 1;
    if (index + step < 0 || index + step >= count) return;
    tools.move(index, step, event.target instanceof HTMLTextAreaElement ? "textarea" : undefined);
  });
  return { node, close };
}

/**
 * @param {ContentItem} item
 * @param {string} name
 * @param {import("./voice.js").VoiceLimits} limits
 * @param {(item: ContentItem) => void} change
 * @returns {Row}
 */
function makeBody(item, name, limits, change) {
  if (item.type === "text") return textBody(item, name, change);
  if (item.type === "image") return imageBody(item, change);
  const node = h("div");
  const player = mountRefAudioPlayer(node, { limits, label: () => name, onChange: (voice) => change({ type: "audio", voice }) });
  player.set(item.voice);
  return { node, close: player.close };
}

/**
 * @param {import("./system-content.js").TextItem} item
 * @param {string} name
 * @param {(item: ContentItem) => void} change
 * @returns {Row}
 */
function textBody(item, name, change) {
  const area = h("textarea", {
    rows: TEXT_ROWS,
    maxlength: MOST_CHARACTERS,
    "aria-label": name,
    placeholder: t("content.text_hint"),
    value: item.text,
  });
  on(area, "input", () => change({ type: "text", text: area.value }));
  return { node: area, close: () => {} };
}

/**
 * @param {import("./system-content.js").ImageItem} item
 * @param {(item: ContentItem) => void} change
 * @returns {Row}
 */
function imageBody(item, change) {
  const file = h("input", { type: "file", accept: "image/*", hidden: true, tabindex: -1 });
  const picture = h("img", { class: "content-picture", alt: item.name, hidden: !item.data });
  if (item.data) picture.src = `data:image/*;base64,${item.data}`;
  const choose = h(
    "button",
    { type: "button", class: "button" },
    icon("image"),
    t(item.data ? "content.other_image" : "content.choose_image"),
  );
  on(choose, "click", () => file.click());
  on(file, "change", async () => {
    const [chosen] = file.files ?? [];
    if (!chosen) return;
    const data = bytesToBase64(new Uint8Array(await chosen.arrayBuffer()));
    picture.src = `data:image/*;base64,${data}`;
    picture.alt = chosen.name;
    picture.hidden = false;
    change({ type: "image", name: chosen.name, data });
  });
  return { node: h("div", { class: "row" }, picture, choose, file), close: () => {} };
}
