/** Parts of several pages that are loaded on demand: help, the editor of the system content, sharing. */

import { byId, on, toastProblem } from "./lit.js";
import { late } from "./async.js";

/** @import { FaqMode } from "./markdown.js" */
/** @import { ContentItem } from "./prompt.js" */
/** @import { SaveShare, ShareSubject } from "./save-share.js" */
/** @import { EditorOptions, SystemContentEditor } from "./prompt-editors.js" */

/**
 * Loads a part when it is first needed, and again after a failure, which is reported.
 * @template T
 * @param {() => Promise<T>} load
 * @param {() => void} onLoaded
 * @returns {(isNeeded: boolean) => T | null} null until it is loaded
 */
export function neededPart(load, onLoaded) {
  /** @type {T | null} */ let part = null;
  let isAsked = false;
  return (isNeeded) => {
    if (isAsked || !isNeeded) return part;
    isAsked = true;
    load().then(
      (loaded) => {
        part = loaded;
        onLoaded();
      },
      (error) => {
        isAsked = false;
        toastProblem(error);
      },
    );
    return part;
  };
}

/**
 * @param {HTMLElement} el
 * @param {EditorOptions} options
 * @returns {SystemContentEditor & {loadEditors: () => Promise<void>}} `loadEditors` loads the editor once
 */
export function mountLateContentEditor(el, options) {
  /** @type {readonly ContentItem[]} */ let given = [];
  /** @type {SystemContentEditor | null} */ let editor = null;
  return {
    get items() {
      return editor?.items ?? given;
    },
    setItems(items) {
      given = items;
      editor?.setItems(items);
    },
    loadEditors: late(
      () => import("./prompt-editors.js"),
      ({ mountSystemContentEditor }) => {
        editor = mountSystemContentEditor(el, options);
        editor.setItems(given);
      },
    ),
  };
}

// The help button of a page: the help is loaded on the first click.

const loadSidebar = late(() => import("./markdown.js"));

export function mountLateHelp(/** @type {FaqMode} */ mode) {
  const opener = byId("open-faq", HTMLButtonElement);
  const mount = (/** @type {Awaited<ReturnType<typeof loadSidebar>>} */ { mountFaqSidebar }) => {
    end();
    mountFaqSidebar(byId("faq"), { mode, opener }).open();
  };
  const end = on(opener, "click", () => void loadSidebar().then(mount).catch(toastProblem));
}

// Offers to share a conversation; the code is loaded when there is something to share.

const loadShare = late(() => import("./save-share.js"));

/** @param {HTMLElement} el @returns {(subject: ShareSubject | null) => Promise<void>} null withdraws the offer */
export function mountOfferShare(el) {
  /** @type {SaveShare | null} */ let show = null;
  /** @type {ShareSubject | null} */ let wanted = null;
  el.hidden = true;
  return async (subject) => {
    wanted = subject;
    el.hidden = subject === null;
    if (!subject) return show?.(null);
    const { mountSaveShare } = await loadShare();
    if (wanted !== subject) return; // superseded by another conversation
    show ??= mountSaveShare(el);
    show(subject);
  };
}
