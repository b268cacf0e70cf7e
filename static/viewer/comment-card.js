// @ts-check
/**
 * The comment on a recording: read it, write it, change it.
 */

import { getJson, sendJson } from "../shared/api.js";
import { mountCommentField } from "../shared/comment-field.js";
import { find } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { html, icon, render } from "../shared/lit.js";
import { mountNotice } from "../shared/notice.js";
import { ownerHeaders } from "../shared/own-recordings.js";
import { toast } from "../shared/toast.js";
import { pathOf } from "./viewer-source.js";

/**
 * @param {HTMLElement} el
 * @param {{recordingId: string, maxChars?: number}} options
 */
export function mountCommentCard(el, { recordingId, maxChars }) {
  const state = { comment: "", isEditing: false, isAllowed: false, isSaving: false };
  const draw = () => render(view(), el);
  const setEditing = (/** @type {boolean} */ wish) => {
    state.isEditing = wish;
    notice.clear();
    draw();
    if (wish) field.area.focus();
    else /** @type {HTMLElement} */ (el.querySelector("[data-action=edit-comment]")).focus();
  };
  const edit = () => {
    field.value = state.comment;
    setEditing(true);
  };
  const save = async () => {
    state.isSaving = true;
    draw();
    try {
      const headers = ownerHeaders(localStorage, recordingId);
      await sendJson("POST", pathOf(recordingId, "comment"), { comment: field.value }, { headers });
      state.comment = field.value;
      setEditing(false);
      toast(t("viewer.comment_saved"));
    } catch (error) {
      notice.show(/** @type {{code?: string, message?: string}} */ (error));
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
        <div data-part="field"></div>
        <div data-part="notice"></div>
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
  draw();
  const field = mountCommentField(find(el, "[data-part=field]", HTMLElement), {
    id: "comment-field",
    labelKey: "viewer.comment",
    maxChars,
  });
  const notice = mountNotice(find(el, "[data-part=notice]", HTMLElement));
  onLangChange(draw);

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
