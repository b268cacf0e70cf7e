// @ts-check
/** The conversations kept in this browser: open, rename, delete; a drawer on small screens. */

import { byId, on, setText } from "../shared/dom.js";
import { formatAgo, formatBytes, formatNumber } from "../shared/formats.js";
import { t, tn } from "../shared/i18n.js";
import { html, iconButton, mountView, nothing, repeat } from "../shared/lit.js";
import { MOST_BYTES, MOST_CONVERSATIONS } from "./history-rule.js";

/** @typedef {import("./history-store.js").Head} Head */

/**
 * @typedef {Object} HistoryOptions
 * @property {() => Promise<Head[]>} list
 * @property {() => string} currentId
 * @property {(head: Head) => void} onOpen
 * @property {(head: Head, title: string) => void} onRename
 * @property {(head: Head) => void} onDelete
 * @property {() => void} onDeleteAll
 */

/**
 * @param {HTMLElement} el
 * @param {HistoryOptions} options
 */
export function mountHistoryPanel(el, options) {
  const list = byId("history-list", HTMLOListElement);
  const about = byId("history-about", HTMLElement);
  const empty = byId("history-empty", HTMLElement);
  const clear = byId("history-clear", HTMLButtonElement);
  const confirm = byId("history-confirm", HTMLDialogElement);
  const drawer = mountDrawer(el);
  /** @type {Head[]} */
  let heads = [];
  /** @type {string | null} */
  let renamingId = null;

  const draw = mountView(list, () => {
    const currentId = options.currentId();
    about.hidden = heads.length === 0;
    clear.hidden = heads.length === 0;
    empty.hidden = heads.length > 0;
    if (heads.length > 0) setText(about, aboutWords(heads));
    return repeat(
      heads,
      ({ id }) => id,
      (head) => (head.id === renamingId ? renameRow(head) : row(head, head.id === currentId)),
    );
  });
  /** @param {Head} head @param {boolean} isCurrent */
  function row(head, isCurrent) {
    const title = head.title || t("chat.untitled");
    const agoS = Math.max(0, (Date.now() - head.updatedAtMs) / 1000);
    const open = () => {
      options.onOpen(head);
      drawer.shut();
    };
    return html`<li class="history-row" data-id=${head.id}>
      <button type="button" class="history-open" aria-current=${isCurrent ? "true" : nothing} @click=${open}>
        <span class="history-title">${title}</span><span class="small soft">${formatAgo(agoS)}</span>
      </button>
      ${tool("edit", t("chat.rename", { title }), () => startRenaming(head.id))}
      ${tool("trash", t("chat.delete_chat", { title }), () => options.onDelete(head))}
    </li>`;
  }
  /** @param {Head} head */
  function renameRow(head) {
    const finish = (/** @type {boolean} */ isKept) => {
      if (renamingId !== head.id) return;
      const title = list.querySelector("input")?.value.trim();
      renamingId = null;
      if (isKept && title && title !== head.title) options.onRename(head, title);
      draw();
    };
    /** @param {KeyboardEvent} event */
    const onKey = ({ key }) => {
      if (key === "Enter" || key === "Escape") finish(key === "Enter");
    };
    return html`<li class="history-row">
      <input
        type="text"
        maxlength="120"
        value=${head.title}
        aria-label=${t("chat.new_name")}
        @keydown=${onKey}
        @blur=${() => finish(true)}
      />
    </li>`;
  }
  /** @param {string} id */
  const startRenaming = (id) => {
    renamingId = id;
    draw();
    list.querySelector("input")?.select();
  };

  on(clear, "click", () => confirm.showModal());
  on(confirm, "close", () => confirm.returnValue === "yes" && options.onDeleteAll());
  return {
    async refresh() {
      heads = await options.list().catch(() => []);
      if (renamingId === null) draw();
    },
    shut: drawer.shut,
  };
}

/** @param {string} sign @param {string} words @param {() => void} run */
const tool = (sign, words, run) => iconButton(sign, words, run, { style: "button-quiet history-tool" });

/** On small screens the panel comes from the side over the page. @param {HTMLElement} el */
function mountDrawer(el) {
  const opener = byId("history-open", HTMLButtonElement);
  const shutter = byId("history-shut", HTMLButtonElement);
  const cover = byId("history-cover", HTMLElement);
  /** @param {boolean} isOpen */
  const become = (isOpen) => {
    el.dataset.open = String(isOpen);
    cover.hidden = !isOpen;
    opener.setAttribute("aria-expanded", String(isOpen));
  };
  const shut = () => {
    const hadFocus = el.contains(document.activeElement) && el.dataset.open === "true";
    become(false);
    if (hadFocus) opener.focus();
  };
  on(opener, "click", () => {
    become(el.dataset.open !== "true");
    if (el.dataset.open === "true") shutter.focus();
  });
  on(shutter, "click", shut);
  on(cover, "click", shut);
  on(el, "keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && el.dataset.open === "true") shut();
  });
  become(false);
  return { shut };
}

/** @param {readonly Head[]} heads */
function aboutWords(heads) {
  const bytes = heads.reduce((sum, head) => sum + head.sizeBytes, 0);
  const gaps = { size: formatBytes(bytes), most: formatNumber(MOST_CONVERSATIONS), bytes: formatBytes(MOST_BYTES) };
  return tn("chat.history_about", heads.length, gaps);
}
