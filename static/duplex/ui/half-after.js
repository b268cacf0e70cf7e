// @ts-check
/**
 * What is offered after a call: its recording, to look at and to pass on.
 */

import { fill, h, icon } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { mountOfferShare } from "../../shared/offer-share.js";
import { addRecent } from "../../shared/recent-sessions.js";

/**
 * @param {HTMLElement} el
 * @param {{appType: string}} options
 */
export function mountAfterCall(el, { appType }) {
  const shareBox = h("div", { class: "share-box" });
  const offer = mountOfferShare(shareBox);
  /** @type {{recordingId: string | null} | null} */
  let finished = null;
  const draw = () => {
    el.hidden = finished === null;
    if (finished === null) return fill(el);
    const { recordingId } = finished;
    fill(el, recordingId && h("a", { class: "button", href: `/s/${recordingId}` }, icon("play"), t("half.replay")), shareBox);
  };
  onLangChange(draw);
  draw();
  return {
    /** @param {{recordingId: string | null} | null} call that has ended; null hides the offer */
    update(call) {
      finished = call;
      if (call?.recordingId) addRecent(localStorage, call.recordingId, appType);
      // Not loaded when the server is gone; the link to the replay is there all the same.
      offer.update(call && { recordingId: call.recordingId, appType }).catch(() => shareBox.replaceChildren());
      draw();
    },
  };
}
