// @ts-check
/**
 * The comment on a recording: read it, write it, change it.
 */

import { getJson, sendJson } from "../shared/api.js";
import { mountCommentField } from "../shared/comment-field.js";
import { fill, h, icon, on, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { mountNotice } from "../shared/notice.js";
import { ownerHeaders } from "../shared/own-recordings.js";
import { toast } from "../shared/toast.js";
import { pathOf } from "./viewer-source.js";

/**
 * @param {HTMLElement} el
 * @param {{recordingId: string, maxChars?: number}} options
 */
export function mountCommentCard(el, { recordingId, maxChars }) {
  const { text, edit, save, cancel, form, shown, field, notice } = makeParts(maxChars);
  let comment = "";
  let isEditing = false;
  edit.hidden = true;

  const draw = () => {
    setText(text, comment || t("viewer.no_comment"));
    text.classList.toggle("soft", comment === "");
    fill(edit, icon("edit"), t(comment ? "common.edit" : "viewer.add_comment"));
    fill(save, icon("check"), t("common.save"));
    fill(cancel, t("common.cancel"));
    shown.hidden = isEditing;
    form.hidden = !isEditing;
  };
  const setEditing = (/** @type {boolean} */ wish) => {
    isEditing = wish;
    notice.clear();
    draw();
    if (wish) field.area.focus();
    else edit.focus();
  };
  on(edit, "click", () => {
    field.value = comment;
    setEditing(true);
  });
  on(cancel, "click", () => setEditing(false));
  const keep = async () => {
    save.disabled = true;
    try {
      await sendJson(
        "POST",
        pathOf(recordingId, "comment"),
        { comment: field.value },
        { headers: ownerHeaders(localStorage, recordingId) },
      );
      comment = field.value;
      setEditing(false);
      toast(t("viewer.comment_saved"));
    } catch (error) {
      notice.show(/** @type {{code?: string, message?: string}} */ (error));
    }
    save.disabled = false;
  };
  on(save, "click", () => void keep());
  fill(el, shown, form);
  onLangChange(draw);
  draw();

  return {
    async load() {
      /** @type {{comment: string}} */
      const answer = await getJson(pathOf(recordingId, "comment"));
      comment = answer.comment;
      el.hidden = false;
      draw();
    },
    /** @param {boolean} isAllowed the recording is one's own, or an administrator looks at it */
    allow(isAllowed) {
      edit.hidden = !isAllowed;
    },
  };
}

/** @param {number} [maxChars] */
function makeParts(maxChars) {
  const text = h("p", { class: "comment-text" });
  const edit = h("button", { type: "button", class: "button", dataset: { action: "edit-comment" } });
  const save = h("button", { type: "button", class: "button button-primary", dataset: { action: "save-comment" } });
  const cancel = h("button", { type: "button", class: "button", dataset: { action: "cancel-comment" } });
  const [place, noticePlace] = [h("div"), h("div")];
  const form = h("div", { class: "stack-tight", hidden: true }, place, noticePlace, h("div", { class: "row" }, save, cancel));
  const shown = h("div", { class: "comment-shown" }, icon("chat"), text, edit);
  const field = mountCommentField(place, { id: "comment-field", labelKey: "viewer.comment", maxChars });
  return { text, edit, save, cancel, form, shown, field, notice: mountNotice(noticePlace) };
}
