// @ts-check
/**
 * The comment on a recording: read it, write it, change it.
 */

import { getJson, sendJson } from "../shared/api.js";
import { commentField } from "../shared/comment-field.js";
import { find } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { html, icon, mountView, nothing } from "../shared/lit.js";
import { noticeView } from "../shared/notice.js";
import { ownerHeaders } from "../shared/own-recordings.js";
import { toast } from "../shared/toast.js";
import { pathOf } from "./viewer-source.js";

/**
 * @param {HTMLElement} el
 * @param {{recordingId: string, maxChars?: number}} options
 */
export function mountCommentCard(el, { recordingId, maxChars }) {
  const state = { comment: "", draft: "", isEditing: false, isAllowed: false, isSaving: false };
  /** @type {import("../shared/notice.js").Problem | null} */
  let problem = null;
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
      const headers = ownerHeaders(localStorage, recordingId);
      const comment = state.draft.trim();
      await sendJson("POST", pathOf(recordingId, "comment"), { comment }, { headers });
      state.comment = comment;
      setEditing(false);
      toast(t("viewer.comment_saved"));
    } catch (error) {
      problem = /** @type {import("../shared/notice.js").Problem} */ (error);
    }
    state.isSaving = false;
    draw();
  };
  const view = () => {
    const { comment, isEditing, isAllowed, isSaving } = state;
    return html`<div class="comment-shown" ?hidden=${isEditing}>
        ${icon("chat")}
        <p class="comment-text ${comment ? "" : "soft"}">${comment || t("viewer.no_comment")}</p>
        <button type="button" class="button" data-action="edit-comment" ?hidden=${!isAllowed} @click=${edit}>
          ${icon("edit")}${t(comment ? "common.edit" : "viewer.add_comment")}
        </button>
      </div>
      <div class="stack-tight" ?hidden=${!isEditing}>
        ${commentField({
          ...{ id: "comment-field", labelKey: "viewer.comment", maxChars, value: state.draft },
          onInput(text) {
            state.draft = text;
            draw();
          },
        })}
        <div role="alert" ?hidden=${problem === null}>${problem ? noticeView(problem) : nothing}</div>
        <div class="row">
          <button type="button" class="button button-primary" data-action="save-comment" ?disabled=${isSaving} @click=${save}>
            ${icon("check")}${t("common.save")}
          </button>
          <button type="button" class="button" data-action="cancel-comment" @click=${() => setEditing(false)}>
            ${t("common.cancel")}
          </button>
        </div>
      </div>`;
  };
  const draw = mountView(el, view);

  return {
    async load() {
      /** @type {{comment: string}} */
      const answer = await getJson(pathOf(recordingId, "comment"));
      state.comment = answer.comment;
      el.hidden = false;
      draw();
    },
    /** @param {boolean} isAllowed the recording is one's own, or an administrator looks at it */
    allow(isAllowed) {
      state.isAllowed = isAllowed;
      draw();
    },
  };
}
