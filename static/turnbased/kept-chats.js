// @ts-check
/**
 * Between the conversation shown and those kept: open, begin, rename, delete, and which to show after a reload.
 */

import { byId, on } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { toast } from "../shared/toast.js";
import { mountHistoryPanel } from "./history-panel.js";

/** @typedef {import("./history-store.js").Head} Head */
/** @typedef {import("./history-store.js").HistoryStore<import("./chat-session.js").ChatBody>} Store */

const CURRENT_KEY = "turnbased_current";
const UNDO_MS = 10_000;

/**
 * @param {Object} options
 * @param {import("./chat-session.js").ChatSession} options.session
 * @param {Store} options.store
 * @param {Pick<Storage, "getItem" | "setItem">} options.storage
 * @param {() => void} options.onBegin another conversation begins
 * @param {() => void} options.onOpen one of the kept is shown
 */
export function mountKeptChats({ session, store, storage, onBegin, onOpen }) {
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
  /** @param {Head} head */
  const open = async (head) => {
    if (!(await session.open(head))) toast(t("chat.gone"));
    onOpen();
    await panel.refresh();
  };
  /** @param {Head} head @param {string} title */
  const rename = async (head, title) => {
    if (head.id === session.head.id) await session.rename(title);
    else await store.rename(head.id, title);
    await panel.refresh();
  };
  /** @param {Head} head */
  const remove = async (head) => {
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
  const remember = () => {
    try {
      storage.setItem(CURRENT_KEY, session.head.id);
    } catch {
      // Storage may be full or forbidden; a reload then begins anew.
    }
  };
  session.on("heads", () => {
    remember();
    void panel.refresh();
  });
  session.on("opened", remember);
  for (const button of document.querySelectorAll("[data-action=new-chat]")) on(button, "click", begin);

  return {
    begin,
    refresh: panel.refresh,
    /** Show what was shown before the reload. */
    async restore() {
      const kept = (await store.list().catch(() => [])).find(({ id }) => id === storage.getItem(CURRENT_KEY));
      if (kept) await open(kept);
      else await panel.refresh();
    },
  };
}
