/** View of a message: text, media, voice, figures, actions. */

import { formatDateTime, problemText, t } from "../shared/texts.js";
import { html, icon, iconButton, noticeBox, nothing, textButton, toast } from "../shared/lit.js";
import { copyText } from "../shared/save-share.js";
import { messageTextOf } from "./conversation.js";
import { mediaView } from "./media-view.js";
import { figureLine, figureRows } from "./attachments.js";

/** @import { Figures } from "./conversation.js" */
/** @import { ChatMessage, MediaPart, MessageActions, MessageState } from "../../types/chat.js" */
/** @import { RenderMarkdown } from "../shared/markdown.js" */
/** @import { Shelf } from "./media-view.js" */

/**
 * @typedef {Object} MessageTools
 * @property {Shelf} shelf
 * @property {readonly MediaPart[]} media of the message
 * @property {RenderMarkdown | null} markdown null: not installed
 * @property {MessageActions} actions
 * @property {() => void} edit
 */

/** @param {MessageState} state @param {MessageTools} tools @param {unknown} editor replaces the question being edited; else null */
export function messageView(state, tools, editor) {
  const { message } = state;
  const { role, status, createdAtMs } = message;
  return html`<li class="message" data-role=${role} data-id=${message.id} data-status=${status}>
    <article aria-label=${t(`chat.said_by_${role}`, { time: formatDateTime(createdAtMs) })}>
      <div class="bubble"><div class="message-body">${editor ?? body(state, tools)}</div></div>
      <div class="message-foot">
        ${editor ? nothing : [figuresView(message.extra.figures ?? {}), actionButtons(state, tools)]}
      </div>
    </article>
  </li>`;
}

function body(/** @type {MessageState} */ state, /** @type {MessageTools} */ { shelf, media, markdown, actions }) {
  const { message } = state;
  const { transcript, voice } = message.extra;
  return [
    media.map((part) => mediaView(part, shelf)),
    // Transcript of a question's audio.
    transcript !== undefined ? html`<p class="message-transcript" dir="auto" .textContent=${transcript}></p>` : nothing,
    textView(message, markdown),
    progress(state),
    voice ? html`<div class="answer-voice">${voicePlayer(message, shelf)?.node}</div>` : nothing,
    problemView(state, actions),
  ];
}

function textView(/** @type {ChatMessage} */ message, /** @type {MessageTools["markdown"]} */ markdown) {
  const words = messageTextOf(message);
  if (words === "") return nothing;
  return markdown && message.role === "assistant"
    ? html`<div class="message-text" dir="auto">${markdown(words)}</div>`
    : html`<div class="message-text is-plain" dir="auto" .textContent=${words}></div>`;
}

export function voicePlayer(/** @type {ChatMessage} */ message, /** @type {Shelf} */ shelf) {
  const { voice } = message.extra;
  if (!voice) return null;
  const time = new Date(message.createdAtMs).toISOString().slice(0, 19).replaceAll(":", "-");
  return shelf.player(voice, () => ({
    file: () => voice.wav,
    durationS: voice.durationS,
    label: () => t("chat.answer_voice"),
    downloadName: `answer-${time}.wav`,
  }));
}

/** Progress of a pending answer. @param {MessageState} state */
function progress({ message, phase }) {
  if (message.status === "stopped") return html`<p class="small soft message-note">${t("chat.was_stopped")}</p>`;
  if (message.status !== "pending") return nothing;
  const now = phase ?? "sending";
  return html`<p class="small soft message-note" data-phase=${now}>
    <span class="dots" aria-hidden="true"><i></i><i></i><i></i></span>${t(`chat.phase_${now}`)}
  </p>`;
}

function problemView(/** @type {MessageState} */ { message, isBusy, isUnanswered }, /** @type {MessageActions} */ actions) {
  const { problem } = message.extra;
  if (!problem && !isUnanswered) return nothing;
  const words = t(problem ? "common.retry" : "chat.answer_now");
  const again = textButton(words, () => actions.answerAgain(message.id), { sign: "retry", isOff: isBusy });
  if (!problem) return html`<div class="row message-note"><span class="small soft">${t("chat.unanswered")}</span>${again}</div>`;
  const { title, nextStep: next, detail } = problemText(problem);
  const more = html`<div>${again}</div>`;
  return noticeBox({ kind: "bad", code: problem.code, sign: icon("warning"), title, next, detail, more });
}

function actionButtons(/** @type {MessageState} */ { message, isBusy }, /** @type {MessageTools} */ { actions, edit }) {
  if (message.status === "pending") return nothing;
  /** @param {string} action @param {string} sign @param {() => void} run @param {boolean} isOff */
  const button = (action, sign, run, isOff) => iconButton(sign, t(`chat.${action}`), run, { action, isOff });
  const words = messageTextOf(message);
  return html`<div class="message-actions">
    ${words ? button("copy", "copy", () => void copyWords(words), false) : nothing}
    ${
      message.role === "user"
        ? button("edit", "edit", edit, isBusy)
        : button("again", "retry", () => actions.answerAgain(message.id), isBusy)
    }
    ${button("delete", "trash", () => actions.remove(message.id), isBusy)}
  </div>`;
}

function figuresView(/** @type {Figures} */ figures) {
  const line = figureLine(figures);
  if (!line) return nothing;
  const { requestId, recordingSessionId } = figures;
  return html`<details class="figures">
    <summary class="small soft number">${line}</summary>
    <dl class="figures-list small">
      ${figureRows(figures).map(
        ({ key, name, value }) =>
          html`<div>
            <dt>${name}</dt>
            <dd class="number" data-figure=${key}>${value}</dd>
          </div>`,
      )}
      ${requestId ? idRow("request", requestId, null) : nothing}
      ${recordingSessionId ? idRow("recording", recordingSessionId, `/s/${recordingSessionId}`) : nothing}
    </dl>
  </details>`;
}

function idRow(/** @type {string} */ key, /** @type {string} */ id, /** @type {string | null} */ href) {
  const name = t(`chat.figure_${key}`);
  const copy = () => void copyWords(href ? new URL(href, location.href).href : id);
  return html`<div>
    <dt>${name}</dt>
    <dd class="mono" data-figure=${key}>
      ${href ? html`<a href=${href}>${id}</a>` : id}${iconButton("copy", t("common.copy"), copy, {
        label: `${t("common.copy")}: ${name}`,
      })}
    </dd>
  </div>`;
}

async function copyWords(/** @type {string} */ text) {
  toast(t((await copyText(text)) ? "common.copied" : "chat.copy_failed"));
}
