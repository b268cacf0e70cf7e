/** The stored conversations and the current one: open, begin, rename, delete. */

import { byId, html, iconButton, mountView, nothing, on, repeat, setText } from "../shared/lit.js";
import { formatAgo, formatBytes, formatNumber, t, tn } from "../shared/texts.js";
import { toast } from "../shared/notice.js";
import { MOST_BYTES, MOST_CONVERSATIONS } from "./history-store.js";
import { remember, remembered } from "../shared/memory.js";

/** @import { Head } from "../../types/chat.js" */
/** @import { ChatBody, ChatSession } from "./chat-session.js" */
/** @import { HistoryStore } from "./history-store.js" */

/** @typedef {HistoryStore<ChatBody>} Store */

const CURRENT_KEY = "turnbased_current";
const UNDO_MS = 10_000;

/**
 * @param {Object} options
 * @param {ChatSession} options.session
 * @param {Store} options.store
 * @param {() => void} options.onBegin a new conversation begins
 * @param {() => void} options.onOpen a stored conversation is opened
 */
export function mountKeptChats({ session, store, onBegin, onOpen }) {
  const panel = mountHistoryPanel(byId("history", HTMLElement), {
    list: store.list,
    currentId: () => session.head.id,
    onOpen: (head) => void open(head),
    onRename: (head, title) => void rename(head, title),
    onDelete: (head) => void remove(head),
    onDeleteAll: () => void store.clear().then(begin),
  });
  const begin = () => {
    session.begin();
    panel.shut();
    onBegin();
    void panel.refresh();
  };
  const open = async (/** @type {Head} */ head) => {
    if (!(await session.open(head))) toast(t("chat.gone"));
    onOpen();
    await panel.refresh();
  };
  const rename = async (/** @type {Head} */ head, /** @type {string} */ title) => {
    if (head.id === session.head.id) await session.rename(title);
    else await store.rename(head.id, title);
    await panel.refresh();
  };
  const remove = async (/** @type {Head} */ head) => {
    const body = await store.read(head.id);
    await store.remove(head.id);
    if (head.id === session.head.id) begin();
    await panel.refresh();
    const bringBack = async () => {
      if (body) await store.write(head, body);
      await panel.refresh();
    };
    toast(t("chat.chat_deleted"), { action: { label: t("chat.undo"), run: () => void bringBack() }, shownMs: UNDO_MS });
  };
  const rememberShown = () => remember(CURRENT_KEY, session.head.id);
  session.on("heads", () => {
    rememberShown();
    void panel.refresh();
  });
  session.on("opened", rememberShown);
  for (const button of document.querySelectorAll("[data-action=new-chat]")) on(button, "click", begin);

  return {
    begin,
    refresh: panel.refresh,
    async restore() {
      const kept = (await store.list().catch(() => [])).find(({ id }) => id === remembered(CURRENT_KEY));
      if (kept) await open(kept);
      else await panel.refresh();
    },
  };
}

// The list of stored conversations; a drawer on small screens.

/**
 * @param {HTMLElement} el
 * @param {{list: () => Promise<Head[]>, currentId: () => string, onOpen: (head: Head) => void,
 *   onRename: (head: Head, title: string) => void, onDelete: (head: Head) => void, onDeleteAll: () => void}} options
 */
function mountHistoryPanel(el, options) {
  const list = byId("history-list", HTMLOListElement);
  const about = byId("history-about", HTMLElement);
  const empty = byId("history-empty", HTMLElement);
  const clear = byId("history-clear", HTMLButtonElement);
  const confirm = byId("history-confirm", HTMLDialogElement);
  const drawer = mountDrawer(el);
  /** @type {Head[]} */ let heads = [];
  /** @type {string | null} */ let renamingId = null;

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
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault(); // else the same key activates the button that receives the focus
      finish(event.key === "Enter");
      [...list.querySelectorAll("li")]
        .find(({ dataset }) => dataset.id === head.id)
        ?.querySelector("button")
        ?.focus();
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
  const startRenaming = (/** @type {string} */ id) => {
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

/** On small screens the panel is a drawer over the page. @param {HTMLElement} el */
function mountDrawer(el) {
  const opener = byId("history-open", HTMLButtonElement);
  const shutter = byId("history-shut", HTMLButtonElement);
  const cover = byId("history-cover", HTMLElement);
  const become = (/** @type {boolean} */ isOpen) => {
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
