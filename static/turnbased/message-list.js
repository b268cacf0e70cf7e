// @ts-check
/**
 * The messages of a conversation. Follows new text only while its end is seen; tells screen readers the whole
 * answer once, not each piece. Messages out of sight cost no layout (`content-visibility`), so hundreds are fine.
 */

import { fill, h, icon, on } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { messageTextOf } from "./conversation.js";
import { prepareMarkdown } from "./markdown.js";
import { makeMessageView } from "./message-view.js";

/** @typedef {import("./chat-session.js").ChatSession} ChatSession */

const NEAR_END_PX = 80;
const MOST_SPOKEN_CHARACTERS = 2_000;

/**
 * @param {HTMLElement} el scrolls
 * @param {{session: ChatSession, actions: import("./message-view.js").MessageActions, spoken: HTMLElement,
 *   toEnd: HTMLButtonElement, onPlain: () => void}} options `spoken` is read aloud, `toEnd` leads to the end,
 *   `onPlain` says that answers stay plain text
 */
export function mountMessageList(el, { session, actions, spoken, toEnd, onPlain }) {
  const list = h("ol", { class: "messages" });
  el.append(list);
  /** @type {Map<string, ReturnType<typeof makeMessageView>>} */
  const views = new Map();
  let isFollowing = true;

  const isAtEnd = () => el.scrollHeight - el.scrollTop - el.clientHeight < NEAR_END_PX;
  const goToEnd = () => {
    el.scrollTop = el.scrollHeight;
  };
  /** @param {boolean} isForced */
  const update = (isForced = false) => {
    const messages = session.conversation.messages.filter(({ role }) => role !== "system");
    const ids = new Set(messages.map(({ id }) => id));
    for (const [id, view] of views) {
      if (ids.has(id)) continue;
      view.close();
      view.node.remove();
      views.delete(id);
    }
    messages.forEach((message, index) => {
      const view = views.get(message.id) ?? makeMessageView(actions, message.role);
      views.set(message.id, view);
      if (message.role === "assistant") needMarkdown();
      const isLast = index === messages.length - 1;
      const turn = message.id === session.answerId ? session.turn : null;
      view.node.dataset.id = message.id;
      if (list.children[index] !== view.node) list.insertBefore(view.node, list.children[index] ?? null);
      view.update({ message, turn, isBusy: session.isBusy, isUnanswered: isLast && session.isUnanswered }, isForced);
    });
    list.hidden = messages.length === 0;
  };
  /** The library comes with the first answer. */
  let isMarkdownAsked = false;
  const needMarkdown = async () => {
    if (isMarkdownAsked) return;
    isMarkdownAsked = true;
    const isThere = await prepareMarkdown();
    if (isThere) for (const view of views.values()) view.refresh();
    else onPlain();
  };
  const drawToEnd = () => {
    toEnd.hidden = isFollowing || el.scrollHeight <= el.clientHeight + NEAR_END_PX;
  };
  const clear = () => {
    for (const view of views.values()) view.close();
    views.clear();
    fill(list);
    el.scrollTop = 0;
    isFollowing = true;
  };

  let lastTop = 0;
  on(
    el,
    "scroll",
    () => {
      // Only who scrolls up stops following; what grows below does not.
      if (isAtEnd()) isFollowing = true;
      else if (el.scrollTop < lastTop) isFollowing = false;
      lastTop = el.scrollTop;
      drawToEnd();
    },
    { passive: true },
  );
  // Text, pictures and players make it longer at any time.
  const observer = new ResizeObserver(() => {
    if (isFollowing && !list.hidden) goToEnd(); // an empty conversation is read from its top
    drawToEnd();
  });
  observer.observe(list);
  observer.observe(el);
  on(toEnd, "click", () => {
    isFollowing = true;
    goToEnd();
  });
  session.on("opened", clear);
  session.on("change", () => update());
  session.on("answered", ({ message }) => {
    const words = messageTextOf(message).slice(0, MOST_SPOKEN_CHARACTERS);
    fill(spoken, message.status === "failed" ? t("chat.answer_failed") : t("chat.answered", { text: words }));
  });
  const drawWords = () => {
    list.setAttribute("aria-label", t("chat.messages"));
    toEnd.setAttribute("aria-label", t("chat.to_end"));
    toEnd.title = t("chat.to_end");
    fill(toEnd, icon("down"));
  };
  onLangChange(() => {
    drawWords();
    update(true);
  });
  drawWords();
  update();

  return {
    /** Play the voice of an answer. @param {string} id */
    play: (id) => views.get(id)?.play(),
    /** The next message is seen, wherever the reader was. */
    follow() {
      isFollowing = true;
      if (!list.hidden) goToEnd();
    },
  };
}
