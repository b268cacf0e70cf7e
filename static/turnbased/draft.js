// @ts-check
/**
 * What is written and not sent yet, kept over a reload: the text at once, attachments beside the conversations.
 */

const TEXT_KEY = "turnbased_draft";
const MEDIA_KEY = "media";

/** @typedef {import("./media-part.js").MediaPart} MediaPart */
/** @typedef {Pick<Storage, "getItem" | "setItem" | "removeItem">} TextStorage */
/** @typedef {Pick<import("./history-store.js").HistoryStore<unknown>, "readDraft" | "writeDraft">} MediaStorage */

/**
 * @param {TextStorage | null} storage
 * @param {MediaStorage} store
 */
export function openDraft(storage, store) {
  /** @type {readonly MediaPart[]} */
  let keptMedia = [];
  return {
    /** @returns {Promise<{text: string, media: MediaPart[]}>} */
    async read() {
      const media = /** @type {MediaPart[] | null} */ (await store.readDraft(MEDIA_KEY).catch(() => null)) ?? [];
      keptMedia = media;
      return { text: readText(storage), media };
    },
    /** @param {string} text @param {readonly MediaPart[]} media */
    keep(text, media) {
      keepText(storage, text);
      if (media === keptMedia || (media.length === 0 && keptMedia.length === 0)) return;
      keptMedia = media;
      // Storage may be full; what is written stays on the page all the same.
      store.writeDraft(MEDIA_KEY, media.length > 0 ? media : null).catch(() => {});
    },
  };
}

/** @param {TextStorage | null} storage */
function readText(storage) {
  try {
    return storage?.getItem(TEXT_KEY) ?? "";
  } catch {
    return "";
  }
}

/** @param {TextStorage | null} storage @param {string} text */
function keepText(storage, text) {
  try {
    if (text) storage?.setItem(TEXT_KEY, text);
    else storage?.removeItem(TEXT_KEY);
  } catch {
    // Storage may be full or forbidden; what is written stays on the page all the same.
  }
}
