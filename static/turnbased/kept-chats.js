/** Around the conversation: stored conversations (open, begin, rename, delete), welcome, wait, queue, upload, context. */

import {
  byId,
  html,
  icon,
  iconButton,
  isConfirmed,
  mountView,
  nothing,
  on,
  repeat,
  setText,
  suggestionsOf,
  textButton,
  toast,
} from "../shared/lit.js";
import { formatAgo, formatBytes, formatClock, formatNumber, onLangChange, t, tn } from "../shared/texts.js";
import { MOST_BYTES, MOST_CONVERSATIONS, tabStorage } from "./history-store.js";
import { remember, remembered } from "../shared/memory.js";
import { mountQueueBanner } from "../duplex/ui/call-notes.js";
import { claimTab } from "../shared/tab-state.js";
import { isComposed, lastFigure } from "./conversation.js";
import { estimateWaitS } from "./turn.js";

/** @import { Head } from "../../types/chat.js" */
/** @import { ChatBody, ChatSession } from "./chat-session.js" */
/** @import { HistoryStore } from "./history-store.js" */

const CURRENT_KEY = "turnbased_current";
const UNDO_MS = 10_000;

/**
 * The list of stored conversations; a drawer on small screens.
 * @param {Object} options
 * @param {ChatSession} options.session
 * @param {HistoryStore<ChatBody>} options.store
 * @param {() => void} options.onBegin a new conversation begins
 * @param {() => void} options.onOpen a stored conversation is opened
 */
export function mountKeptChats({ session, store, onBegin, onOpen }) {
  const list = byId("history-list", HTMLOListElement);
  const about = byId("history-about");
  const empty = byId("history-empty");
  const clear = byId("history-clear", HTMLButtonElement);
  const drawer = mountDrawer(byId("history"));
  /** @type {Head[]} */ let heads = [];
  /** @type {string | null} */ let renamingId = null;

  const draw = mountView(list, () => {
    about.hidden = heads.length === 0;
    clear.hidden = heads.length === 0;
    empty.hidden = heads.length > 0;
    if (heads.length > 0) setText(about, aboutWords(heads));
    return repeat(
      heads,
      ({ id }) => id,
      (head) => (head.id === renamingId ? renameRow(head) : row(head, head.id === session.head.id)),
    );
  });
  const refresh = async () => {
    heads = await store.list().catch(() => []);
    if (renamingId === null) draw();
  };
  const begin = (isDeleted = false) => {
    session.begin(isDeleted);
    drawer.shut();
    onBegin();
    void refresh();
  };
  const open = async (/** @type {Head} */ head) => {
    if (!(await session.open(head))) toast(t("chat.gone"));
    onOpen();
    await refresh();
  };
  const rename = async (/** @type {Head} */ head, /** @type {string} */ title) => {
    if (head.id === session.head.id) await session.rename(title);
    else await store.rename(head.id, title);
    await refresh();
  };
  const remove = async (/** @type {Head} */ head) => {
    const body = await store.read(head.id).catch(() => null); // one that cannot be read can be deleted, without undo
    if (head.id === session.head.id) begin(true);
    await store.remove(head.id);
    await refresh();
    const undo = body && { label: t("chat.undo"), run: () => void store.write(head, body).then(refresh) };
    toast(t("chat.chat_deleted"), { action: undo ?? undefined, shownMs: UNDO_MS });
  };
  function row(/** @type {Head} */ head, /** @type {boolean} */ isCurrent) {
    const title = head.title || t("chat.untitled");
    const agoS = Math.max(0, (Date.now() - head.updatedAtMs) / 1000);
    const show = () => {
      void open(head);
      drawer.shut();
    };
    return html`<li class="history-row" data-id=${head.id}>
      <button type="button" class="history-open" aria-current=${isCurrent ? "true" : nothing} @click=${show}>
        <span class="history-title" dir="auto">${title}</span><span class="small soft">${formatAgo(agoS)}</span>
      </button>
      ${tool("edit", t("chat.rename", { title }), () => startRenaming(head.id))}
      ${tool("trash", t("chat.delete_chat", { title }), () => void remove(head))}
    </li>`;
  }
  function renameRow(/** @type {Head} */ head) {
    const finish = (/** @type {boolean} */ isKept) => {
      if (renamingId !== head.id) return;
      const title = list.querySelector("input")?.value.trim();
      renamingId = null;
      if (isKept && title && title !== head.title) void rename(head, title);
      draw();
    };
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if (isComposed(event) || (event.key !== "Enter" && event.key !== "Escape")) return;
      event.preventDefault(); // else the same key activates the button that receives the focus
      finish(event.key === "Enter");
      /** @type {HTMLElement | null} */ (list.querySelector(`[data-id="${head.id}"] button`))?.focus();
    };
    return html`<li class="history-row">
      <input
        type="text"
        maxlength="120"
        dir="auto"
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

  on(clear, "click", async () => {
    const [title, text] = [t("chat.delete_all_title"), t("chat.delete_all_about")];
    if (!(await isConfirmed({ title, text, confirm: t("chat.delete_all") }))) return;
    begin(true);
    await store.clear().then(refresh);
  });
  const rememberShown = () => {
    for (const storage of [tabStorage(), undefined]) remember(CURRENT_KEY, session.head.id, storage); // of the tab, and for new ones
  };
  session.on("heads", () => {
    rememberShown();
    void refresh();
  });
  session.on("opened", rememberShown);
  for (const button of document.querySelectorAll("[data-action=new-chat]")) on(button, "click", () => begin());

  return {
    begin: () => begin(),
    refresh,
    async restore() {
      const shownId = remembered(CURRENT_KEY, tabStorage()) ?? remembered(CURRENT_KEY);
      const kept = (await store.list().catch(() => [])).find(({ id }) => id === shownId);
      await (kept ? open(kept) : refresh());
    },
  };
}

/** @param {string} sign @param {string} words @param {() => void} run */
const tool = (sign, words, run) => iconButton(sign, words, run, { style: "button-quiet history-tool" });

/** On small screens the panel is a drawer over the page. @param {HTMLElement} el */
function mountDrawer(el) {
  const opener = byId("history-open", HTMLButtonElement);
  const shutter = byId("history-shut", HTMLButtonElement);
  const cover = byId("history-cover");
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

function aboutWords(/** @type {readonly Head[]} */ heads) {
  const bytes = heads.reduce((sum, head) => sum + head.sizeBytes, 0);
  const gaps = { size: formatBytes(bytes), most: formatNumber(MOST_CONVERSATIONS), bytes: formatBytes(MOST_BYTES) };
  return tn("chat.history_about", heads.length, gaps);
}

const NEARLY_FULL = 0.85; // of the model's context

/** @param {{session: ChatSession, maxKvTokens: number, onNewChat: () => void}} options */
export function mountChatNotes({ session, maxKvTokens, onNewChat }) {
  const queue = mountQueueBanner(byId("queue"), { onCancel: () => session.stop() });
  const memory = byId("memory");
  const drawMemory = mountView(memory, () => {
    const used = lastFigure(session.conversation, "tokenStats")?.total_tokens ?? 0;
    const share = Math.min(1, used / maxKvTokens);
    memory.hidden = share < NEARLY_FULL;
    const gaps = { used: formatNumber(used), most: formatNumber(maxKvTokens), percent: formatNumber(share * 100) };
    return html`${icon("warning")}
      <p class="small">${t("chat.memory", gaps)}</p>
      ${textButton(t("chat.new"), onNewChat)}`;
  });
  const wait = byId("wait");
  const tab = claimTab();
  let waitS = 0;
  const draw = () => {
    wait.hidden = waitS <= 0 || session.isBusy;
    setText(wait, t("chat.wait_estimate", { time: formatClock(waitS) }));
  };
  session.on("change", () => {
    const place = session.turn?.queue ?? null;
    queue.update(place);
    if (place) tab.show("queued", `(${place.position}) `);
    else tab.show("idle");
    drawMemory();
    draw();
  });
  onLangChange(() => {
    tab.setTitle(document.title);
    draw();
  });

  return {
    showStatus(/** @type {Http.ServiceStatus | null} */ status) {
      waitS = status ? estimateWaitS(status) : 0;
      draw();
    },
    unlock: queue.unlock,
  };
}

// Upload progress of a large message.

const INTERVAL_MS = 150;
const WORTH_BYTES = 256 * 1024; // less is sent too fast to be seen

/** Watches a socket's buffer until it is empty. @param {HTMLElement} el @param {() => WebSocket | null} socket */
export function mountUpload(el, socket) {
  /** @type {ReturnType<typeof setInterval> | undefined} */ let timer;
  let totalBytes = 0;
  let waitingBytes = 0;
  const draw = mountView(el, () => {
    el.hidden = totalBytes < WORTH_BYTES || waitingBytes === 0;
    const sentBytes = totalBytes - waitingBytes;
    const words = t("chat.sending_bytes", { sent: formatBytes(sentBytes), total: formatBytes(totalBytes) });
    return html`<span class="small">${words}</span
      ><progress max="1" .value=${sentBytes / (totalBytes || 1)} aria-label=${t("chat.sending")}></progress>`;
  });
  const look = () => {
    waitingBytes = socket()?.bufferedAmount ?? 0;
    totalBytes = Math.max(totalBytes, waitingBytes);
    if (totalBytes >= WORTH_BYTES && waitingBytes === 0) end();
    else draw();
  };
  const end = () => {
    clearInterval(timer);
    totalBytes = waitingBytes = 0;
    draw();
  };
  return {
    begin() {
      end();
      timer = setInterval(look, INTERVAL_MS);
      look();
    },
    end,
  };
}

// An empty conversation: welcome, note about a demonstration model, suggestions. What it returns shows the model.

const SUGGESTIONS = ["explain", "write", "picture"];

export function mountWelcome(/** @type {{session: ChatSession, onSuggest: (text: string) => void}} */ { session, onSuggest }) {
  const el = byId("welcome");
  const note = byId("demo-note");
  /** @type {Http.ModelFacts | null} */ let model = null;
  const follow = () => {
    el.hidden = session.conversation.messages.some(({ role }) => role !== "system");
  };
  const draw = mountView(byId("suggestions"), () => {
    note.hidden = !model?.is_demonstration;
    setText(note, model?.is_demonstration ? t(`model_note.${model.kind}`, { name: model.name }) : "");
    const known = suggestionsOf(model);
    const words = known.length > 0 ? known : SUGGESTIONS.map((one) => t(`chat.try_${one}`));
    return words.map((one) => textButton(one, () => onSuggest(one), { style: "pill" }));
  });
  session.on("change", follow);
  follow();
  return (/** @type {Http.ModelFacts | null | undefined} */ next) => {
    model = next ?? null;
    draw();
  };
}
