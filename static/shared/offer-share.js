// @ts-check
/** Offers to share a conversation; what that needs is loaded when there is something to share. */

/** @import { SaveShare, ShareSubject } from "./save-share.js" */

/** @param {HTMLElement} el @returns {{update: (subject: ShareSubject | null) => Promise<void>}} null takes the offer back */
export function mountOfferShare(el) {
  /** @type {SaveShare | null} */
  let mounted = null;
  /** @type {ShareSubject | null} */
  let wanted = null;
  el.hidden = true;
  return {
    async update(subject) {
      wanted = subject;
      el.hidden = subject === null;
      if (!subject) return mounted?.update({ recordingId: null, getBrowserRecording: undefined });
      const { mountSaveShare } = await import("./save-share.js");
      if (wanted !== subject) return; // another conversation has begun meanwhile
      if (mounted) mounted.update({ getBrowserRecording: undefined, ...subject });
      else mounted = mountSaveShare(el, subject);
    },
  };
}
