/** Loading of a recording and its audio; header of a replay: facts, link and comment. */

import { ApiError, getJson, recordingPath, sendJson } from "../shared/api.js";
import { appTitle } from "../shared/apps.js";
import { commentField, copyLink, linkOf } from "../shared/save-share.js";
import {
  byId,
  find,
  html,
  icon,
  isConfirmed,
  mountView,
  nothing,
  noticeView,
  render,
  setText,
  textButton,
  toast,
} from "../shared/lit.js";
import { formatDateTime, onLangChange, t } from "../shared/texts.js";
import { ownerHeaders } from "../shared/memory.js";
import { factTexts } from "./time-axis.js";

/** @import { Meta, Recording } from "../../types/recording.js" */
/** @import { Problem } from "../shared/lit.js" */

const AGAIN_MS = 2_000;
const CONFLICT = 409;
/** Apps of the recordings whose type is not named like their app. @type {Readonly<Record<string, string>>} */
const APPS = { chat: "turnbased", streaming: "turnbased", omni_duplex: "omni" };

function wait(/** @type {number} */ ms, /** @type {AbortSignal} */ signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

/**
 * @param {string} recordingId
 * @param {{onMeta: (meta: Meta) => void, onWaiting: (status: string) => void, signal: AbortSignal}} options
 *   `onWaiting`: it is still being written, with its progress
 */
export async function loadRecording(recordingId, { onMeta, onWaiting, signal }) {
  for (;;) {
    /** @type {Meta} */ const meta = await getJson(recordingPath(recordingId), { signal });
    onMeta(meta);
    try {
      /** @type {Recording} */ const recording = await getJson(recordingPath(recordingId, "recording"), { signal });
      return { meta, recording };
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== CONFLICT) throw error;
      onWaiting(meta.status);
    }
    await wait(AGAIN_MS, signal);
  }
}

const PARTIAL_CONTENT = 206;

/** Reads a byte range of a file. @param {string} url @param {number} first @param {number} last inside @returns {Promise<ArrayBuffer>} */
export async function fetchBytes(url, first, last) {
  const answer = await fetch(url, { headers: { Range: `bytes=${first}-${last}` } });
  if (!answer.ok) throw new Error(`The sound was not given (${answer.status}).`);
  const all = await answer.arrayBuffer();
  return answer.status === PARTIAL_CONTENT ? all : all.slice(first, last + 1);
}

/** @param {string} recordingId @param {{onDeleted: () => void, onProblem: (error: unknown) => void}} options */
export function mountHead(recordingId, { onDeleted, onProblem }) {
  const [title, facts, actions] = ["title", "facts", "actions"].map((id) => byId(id));
  /** @type {Meta | null} */ let meta = null;
  let isAllowed = false;

  const buttons = () => [
    html`<a class="button" href=${recordingPath(recordingId, "download")} download data-action="download"
      >${icon("download")}${t("viewer.download")}</a
    >`,
    textButton(t("viewer.copy_link"), () => void copyLink(linkOf(recordingId)), { sign: "link", action: "copy-link" }),
    textButton(t("common.delete"), () => void remove(), {
      sign: "trash",
      action: "delete",
      style: "button-danger",
      isShown: isAllowed,
    }),
  ];
  const draw = () => {
    render(buttons(), actions);
    if (!meta) return;
    const app = appTitle(APPS[meta.app_type] ?? meta.app_type, meta.app_type);
    setText(title, app);
    title.removeAttribute("data-t"); // it has texts of its own now
    document.title = `${app} · ${formatDateTime(meta.created_at)} · MiniCPM-o live`;
    const badges = factTexts(meta).map(([name, text]) => html`<li class="badge number" data-fact=${name}>${text}</li>`);
    render(badges, facts);
  };
  const remove = async () => {
    const [title, text] = [t("viewer.delete_title"), t("viewer.delete_about")];
    if (!(await isConfirmed({ title, text, confirm: t("common.delete") }))) return;
    const headers = ownerHeaders(recordingId);
    await sendJson("DELETE", recordingPath(recordingId), undefined, { headers }).then(onDeleted, onProblem);
  };
  onLangChange(draw);
  draw();
  return {
    update(/** @type {Meta} */ latest) {
      meta = latest;
      draw();
    },
    /** @param {boolean} wish whether the visitor owns the recording or is an administrator */
    allow(wish) {
      isAllowed = wish;
      draw();
    },
  };
}

// The comment on a recording: view and edit.

/** @param {HTMLElement} el @param {{recordingId: string, maxChars?: number}} options */
export function mountCommentCard(el, { recordingId, maxChars }) {
  const state = { comment: "", draft: "", isEditing: false, isAllowed: false, isSaving: false };
  /** @type {Problem | null} */ let problem = null;
  const setEditing = (/** @type {boolean} */ wish) => {
    state.isEditing = wish;
    problem = null;
    draw();
    find(el, wish ? "textarea" : "[data-action=edit-comment]", HTMLElement).focus();
  };
  const edit = () => {
    state.draft = state.comment;
    setEditing(true);
  };
  const save = async () => {
    state.isSaving = true;
    draw();
    try {
      const headers = ownerHeaders(recordingId);
      const comment = state.draft.trim();
      await sendJson("POST", recordingPath(recordingId, "comment"), { comment }, { headers });
      state.comment = comment;
      setEditing(false);
      toast(t("viewer.comment_saved"));
    } catch (error) {
      problem = /** @type {Problem} */ (error);
    }
    state.isSaving = false;
    draw();
  };
  const view = () => {
    const { comment, isEditing, isAllowed, isSaving } = state;
    return html`<div class="comment-shown" ?hidden=${isEditing}>
        ${icon("chat")}
        <p class="comment-text ${comment ? "" : "soft"}" dir="auto">${comment || t("viewer.no_comment")}</p>
        ${textButton(t(comment ? "common.edit" : "viewer.add_comment"), edit, {
          sign: "edit",
          action: "edit-comment",
          isShown: isAllowed,
        })}
      </div>
      <div class="stack-tight" ?hidden=${!isEditing}>
        ${commentField({
          id: "comment-field",
          labelKey: "viewer.comment",
          maxChars,
          value: state.draft,
          onInput(text) {
            state.draft = text;
            draw();
          },
        })}
        <div role="alert" ?hidden=${problem === null}>${problem ? noticeView(problem) : nothing}</div>
        <div class="row">
          ${textButton(t("common.save"), save, { sign: "check", action: "save-comment", style: "button-primary", isOff: isSaving })}
          ${textButton(t("common.cancel"), () => setEditing(false), { action: "cancel-comment" })}
        </div>
      </div>`;
  };
  const draw = mountView(el, view);

  return {
    async load() {
      /** @type {{comment: string}} */ const answer = await getJson(recordingPath(recordingId, "comment"));
      state.comment = answer.comment;
      el.hidden = false;
      draw();
    },
    /** @param {boolean} isAllowed whether the visitor owns the recording or is an administrator */
    allow(isAllowed) {
      state.isAllowed = isAllowed;
      draw();
    },
  };
}
