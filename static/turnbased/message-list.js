/**
 * The messages of a conversation. Follows new text only while its end is visible; announces each answer to screen readers once,
 * as a whole. Messages out of view cost no layout (`content-visibility`).
 */

import { late, throttled } from "../shared/async.js";
import { guard, icon, mountView, nothing, on, repeat } from "../shared/lit.js";
import { getLang, t } from "../shared/texts.js";
import { neededPart } from "../shared/late-parts.js";
import { mediaOf, messageTextOf } from "./conversation.js";

/** @import { ChatSession } from "./chat-session.js" */
/** @import { ChatMessage, MediaPart, MessageActions } from "../../types/chat.js" */

export const loadViews = late(
  () => Promise.all([import("./message-view.js"), import("./media-view.js"), import("../shared/markdown.js")]),
  ([{ messageView, voicePlayer }, { createShelf, openQuestionEditor }, { loadMarkdown }]) => {
    return { messageView, voicePlayer, openQuestionEditor, loadMarkdown, shelf: createShelf() };
  },
);

const NEAR_END_PX = 80;
const MOST_SPOKEN_CHARACTERS = 2_000;
const DRAWN_EVERY_MS = 120; // limits how often a growing answer is parsed

/**
 * @param {HTMLElement} el scrolls
 * @param {{session: ChatSession, actions: MessageActions, spoken: HTMLElement,
 *   toEnd: HTMLButtonElement, onPlain: () => void}} options `spoken` is read aloud, `toEnd` scrolls to the end,
 *   `onPlain` says that answers stay plain text
 */
export function mountMessageList(el, { session, actions, spoken, toEnd, onPlain }) {
  const list = document.createElement("ol");
  list.className = "messages";
  el.append(list);
  const views = neededPart(loadViews, () => draw());
  const loadRenderer = async () => {
    const { loadMarkdown } = await loadViews();
    return loadMarkdown().catch(() => void onPlain());
  };
  const renderer = neededPart(loadRenderer, () => draw());
  /** Created once per content. @type {WeakMap<object, MediaPart[]>} */ const media = new WeakMap();
  /** Id of the question being edited. @type {{id: string, view: () => unknown} | null} */ let editor = null;

  const mediaPartsOf = (/** @type {ChatMessage} */ message) => {
    const parts = media.get(message.items) ?? mediaOf(message);
    media.set(message.items, parts);
    return parts;
  };
  const shown = () => session.conversation.messages.filter(({ role }) => role !== "system");
  const edit = async (/** @type {ChatMessage} */ message) => {
    const { openQuestionEditor } = await loadViews();
    const close = () => {
      editor = null;
      draw();
    };
    const view = openQuestionEditor(messageTextOf(message), mediaPartsOf(message), {
      draw: () => draw(),
      isBusy: () => session.isBusy,
      onCancel() {
        close();
        /** @type {HTMLElement | null} */ (list.querySelector(`[data-id="${message.id}"] [data-action=edit]`))?.focus();
      },
      onSend(words, parts) {
        close();
        actions.askInstead(message.id, words, parts);
      },
    });
    editor = { id: message.id, view };
    draw();
    const area = list.querySelector("textarea");
    area?.focus();
    area?.setSelectionRange(area.value.length, area.value.length);
  };
  /** @param {Awaited<ReturnType<typeof loadViews>>} views @param {ChatMessage} message @param {boolean} isLast */
  const row = ({ messageView, shelf }, message, isLast) => {
    const phase = message.id === session.answerId ? (session.turn?.phase ?? null) : null;
    const { isBusy } = session;
    const isUnanswered = isLast && session.isUnanswered;
    const markdown = renderer(message.role === "assistant") ?? null;
    const state = { message, phase, isBusy, isUnanswered };
    const tools = { shelf, media: mediaPartsOf(message), markdown, actions, edit: () => void edit(message) };
    const view = () => messageView(state, tools, editor?.id === message.id ? editor.view() : null);
    return editor?.id === message.id ? view() : guard([message, phase, isBusy, isUnanswered, markdown, getLang()], view);
  };
  const draw = mountView(list, () => {
    const messages = shown();
    list.hidden = messages.length === 0;
    list.setAttribute("aria-label", t("chat.messages"));
    const known = views(messages.length > 0);
    if (!known) return nothing;
    known.shelf.keepOnly(messages.flatMap((message) => [...mediaPartsOf(message), message.extra.voice]));
    return repeat(
      messages,
      ({ id }) => id,
      (message, index) => row(known, message, index === messages.length - 1),
    );
  });

  const end = followEnd(el, list, toEnd);
  session.on("opened", () => {
    editor = null;
    draw();
    end.reset();
  });
  session.on("change", throttled(draw, DRAWN_EVERY_MS));
  session.on("answered", ({ message }) => {
    const words = messageTextOf(message).slice(0, MOST_SPOKEN_CHARACTERS);
    spoken.textContent = message.status === "failed" ? t("chat.answer_failed") : t("chat.answered", { text: words });
  });
  return {
    /** Plays the voice of an answer. @param {string} id */
    async play(id) {
      const { shelf, voicePlayer } = await loadViews();
      draw();
      const message = shown().find((one) => one.id === id);
      if (message) voicePlayer(message, shelf)?.play();
    },
    /** Scrolls to the next message, wherever the reader was. */
    follow: end.follow,
  };
}

/** @param {HTMLElement} el scrolls @param {HTMLElement} list @param {HTMLButtonElement} toEnd leads there */
function followEnd(el, list, toEnd) {
  let isFollowing = true;
  let lastTop = 0;
  const isAtEnd = () => el.scrollHeight - el.scrollTop - el.clientHeight < NEAR_END_PX;
  const showToEnd = () => {
    toEnd.hidden = isFollowing || el.scrollHeight <= el.clientHeight + NEAR_END_PX;
  };
  const goToEnd = () => {
    if (isFollowing && !list.hidden) el.scrollTop = el.scrollHeight; // an empty conversation is shown from the top
  };
  const follow = () => {
    isFollowing = true;
    goToEnd();
  };
  const onScroll = () => {
    // Only scrolling up stops following; growth of the content does not.
    if (isAtEnd()) isFollowing = true;
    else if (el.scrollTop < lastTop) isFollowing = false;
    lastTop = el.scrollTop;
    showToEnd();
  };
  on(el, "scroll", onScroll, { passive: true });
  // Text, pictures and players may change its height at any time.
  const observer = new ResizeObserver(() => {
    goToEnd();
    showToEnd();
  });
  observer.observe(list);
  observer.observe(el);
  on(toEnd, "click", follow);
  mountView(toEnd, () => {
    toEnd.ariaLabel = toEnd.title = t("chat.to_end");
    return icon("down");
  });
  return {
    follow,
    reset() {
      el.scrollTop = 0;
      isFollowing = true;
    },
  };
}
