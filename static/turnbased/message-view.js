// @ts-check
/**
 * One message: text, media, voice, how it went, and what can be done with it.
 */

import { fill, h, icon, on } from "../shared/dom.js";
import { formatDateTime } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { problemText } from "../shared/problems.js";
import { makeClipPlayer } from "./clip-player.js";
import { figuresOf, problemOf, voiceOf } from "./conversation-facts.js";
import { messageTextOf } from "./conversation.js";
import { copyText, makeFigures } from "./figures.js";
import { showMarkdown } from "./markdown.js";
import { mediaOf } from "./media-part.js";
import { makeMedia } from "./media-view.js";

/** @typedef {import("./conversation.js").ChatMessage} ChatMessage */
/** @typedef {import("./media-part.js").MediaPart} MediaPart */
/** @typedef {import("./turn-progress.js").TurnProgress} TurnProgress */

/**
 * @typedef {Object} MessageActions
 * @property {(id: string, text: string, media: readonly MediaPart[]) => void} askInstead
 * @property {(id: string) => void} answerAgain
 * @property {(id: string) => void} remove
 *
 * @typedef {Object} MessageState what one message depends on
 * @property {ChatMessage} message
 * @property {TurnProgress | null} turn of the answer that is coming
 * @property {boolean} isBusy some answer is coming
 * @property {boolean} isUnanswered it is the last, and no reply is under way
 */

const MARKDOWN_EVERY_MS = 120; // while an answer comes

/**
 * @param {MessageActions} actions
 * @param {string} role
 */
export function makeMessageView(actions, role) {
  const body = h("div", { class: "message-body" });
  const foot = h("div", { class: "message-foot" });
  const text = h("div", { class: "message-text", dir: "auto" });
  const node = h("li", { class: "message", dataset: { role } }, h("article", {}, h("div", { class: "bubble" }, body), foot));
  /** @type {MessageState | null} */
  let shown = null;
  /** @type {(() => void)[]} */
  let ends = [];
  let isEditing = false;
  let drawnText = "";
  let drawnAtMs = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {string} words */
  const drawText = (words) => {
    drawnText = words;
    drawnAtMs = performance.now();
    if (role === "assistant") showMarkdown(text, words);
    else fill(text, words);
  };
  /** A long answer is parsed a few times a second, not with every piece. @param {string} words */
  const drawSoon = (words) => {
    clearTimeout(timer);
    const waitMs = MARKDOWN_EVERY_MS - (performance.now() - drawnAtMs);
    if (waitMs <= 0) drawText(words);
    else timer = setTimeout(() => drawText(words), waitMs);
  };
  const media = keptNodes();
  const release = () => {
    clearTimeout(timer);
    ends.forEach((end) => end());
    ends = [];
  };
  /** @param {MessageState} state */
  const draw = (state) => {
    release();
    const { message } = state;
    const article = node.firstElementChild;
    article?.setAttribute("aria-label", t(`chat.said_by_${role}`, { time: formatDateTime(message.createdAtMs) }));
    node.dataset.status = message.status;
    if (isEditing) return void drawEditor(state);
    const words = messageTextOf(message);
    text.hidden = words === "";
    drawText(words);
    const shownMedia = media.get(message.items, () => mediaOf(message).map(makeMedia));
    const voice = voiceOf(message);
    const shownVoice = voice ? media.get(voice, () => [makeVoice(voice, message.createdAtMs)]) : [];
    fill(body, shownMedia, transcriptOf(message), text, statusNode(state), shownVoice, problemNode(state, actions));
    media.keepOnly([message.items, voice]);
    fill(foot, makeFigures(figuresOf(message)), actionsNode(state, actions, startEditing));
  };
  const startEditing = () => {
    isEditing = true;
    if (shown) draw(shown);
  };
  /** @param {MessageState} state */
  const drawEditor = async ({ message }) => {
    const { makeQuestionEditor } = await import("./question-editor.js");
    const close = () => {
      isEditing = false;
      if (shown) draw(shown);
      find(foot, "[data-action=edit]")?.focus();
    };
    const editor = makeQuestionEditor(messageTextOf(message), mediaOf(message), {
      onCancel: close,
      onSend: (words, media) => {
        isEditing = false;
        actions.askInstead(message.id, words, media);
      },
    });
    ends.push(editor.close);
    fill(body, editor.node);
    fill(foot);
    editor.focus();
  };

  return {
    node,
    /** @param {MessageState} state @param {boolean} isForced draw even if nothing changed: another language */
    update(state, isForced = false) {
      const before = shown;
      shown = state;
      if (before && !isForced && isSame(before, state)) return;
      if (before && isEditing && before.message === state.message) return;
      const isGrowing = before && !isForced && state.turn && before.turn?.phase === state.turn.phase;
      const words = messageTextOf(state.message);
      if (!isGrowing || drawnText === "") return draw(state);
      if (words !== drawnText) drawSoon(words);
    },
    /** Draw the text anew: the Markdown library has come. */
    refresh() {
      if (role === "assistant" && shown) drawText(messageTextOf(shown.message));
    },
    /** Play the answer's voice. */
    play: () => find(body, ".answer-voice .clip-play")?.click(),
    close() {
      release();
      media.keepOnly([]);
    },
  };
}

/** @param {HTMLElement} root @param {string} selector */
function find(root, selector) {
  const found = root.querySelector(selector);
  return found instanceof HTMLElement ? found : null;
}

/** @param {MessageState} a @param {MessageState} b */
function isSame(a, b) {
  return a.message === b.message && a.turn?.phase === b.turn?.phase && a.isBusy === b.isBusy && a.isUnanswered === b.isUnanswered;
}

/** What is said in the sound of a question. @param {ChatMessage} message */
function transcriptOf({ extra: { transcript } }) {
  return typeof transcript === "string" ? h("p", { class: "message-transcript", dir: "auto" }, transcript) : null;
}

/** What goes on before and while an answer comes. @param {MessageState} state */
function statusNode({ message, turn }) {
  if (message.status === "stopped") return h("p", { class: "small soft message-note" }, t("chat.was_stopped"));
  if (message.status !== "pending") return null;
  const phase = turn?.phase ?? "sending";
  const dots = h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
  return h("p", { class: "small soft message-note", dataset: { phase } }, dots, t(`chat.phase_${phase}`));
}

/**
 * What loads and plays is made once for each content, not with each change around it.
 */
function keptNodes() {
  /** @type {Map<object, import("./media-view.js").Shown[]>} */
  const kept = new Map();
  return {
    /** @param {object} content @param {() => import("./media-view.js").Shown[]} make */
    get(content, make) {
      const shown = kept.get(content) ?? make();
      kept.set(content, shown);
      return shown.map(({ node }) => node);
    },
    /** @param {readonly (object | null)[]} contents what is not among them is let go */
    keepOnly(contents) {
      for (const [content, shown] of kept) {
        if (contents.includes(content)) continue;
        shown.forEach(({ close }) => close());
        kept.delete(content);
      }
    },
  };
}

/** @param {import("./conversation-facts.js").Voice} voice @param {number} createdAtMs */
function makeVoice(voice, createdAtMs) {
  const time = new Date(createdAtMs).toISOString().slice(0, 19).replaceAll(":", "-");
  const player = makeClipPlayer({
    file: () => voice.wav,
    durationS: voice.durationS,
    label: () => t("chat.answer_voice"),
    downloadName: `answer-${time}.wav`,
  });
  player.node.classList.add("answer-voice");
  return player;
}

/** @param {MessageState} state @param {MessageActions} actions */
function problemNode({ message, isBusy, isUnanswered }, actions) {
  const problem = problemOf(message);
  if (!problem && !isUnanswered) return null;
  const again = h(
    "button",
    { type: "button", class: "button", disabled: isBusy },
    icon("retry"),
    t(problem ? "common.retry" : "chat.answer_now"),
  );
  on(again, "click", () => actions.answerAgain(message.id));
  if (!problem) return h("div", { class: "row message-note" }, h("span", { class: "small soft" }, t("chat.unanswered")), again);
  const { title, nextStep, detail } = problemText(problem);
  return h(
    "div",
    { class: "notice message-problem", dataset: { kind: "bad", code: problem.code } },
    icon("warning"),
    h(
      "div",
      { class: "stack-tight" },
      h("p", { class: "notice-title" }, title),
      h("p", {}, nextStep),
      detail ? h("p", { class: "small soft" }, detail) : null,
      h("div", {}, again),
    ),
  );
}

/**
 * @param {MessageState} state
 * @param {MessageActions} actions
 * @param {() => void} startEditing
 */
function actionsNode({ message, isBusy }, actions, startEditing) {
  if (message.status === "pending") return null;
  /** @param {string} name @param {string} iconName @param {() => void} run @param {boolean} isOff */
  const button = (name, iconName, run, isOff) => {
    const words = t(`chat.${name}`);
    const made = h(
      "button",
      {
        type: "button",
        class: "button button-quiet button-icon",
        "aria-label": words,
        title: words,
        disabled: isOff,
        dataset: { action: name },
      },
      icon(iconName),
    );
    on(made, "click", run);
    return made;
  };
  const words = messageTextOf(message);
  return h(
    "div",
    { class: "message-actions" },
    words ? button("copy", "copy", () => void copyText(words), false) : null,
    message.role === "user"
      ? button("edit", "edit", startEditing, isBusy)
      : button("again", "retry", () => actions.answerAgain(message.id), isBusy),
    button("delete", "trash", () => actions.remove(message.id), isBusy),
  );
}
