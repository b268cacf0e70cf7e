// @ts-check
/** Who said what, turn by turn: follows its end while that is seen, and else offers a way there. */

import { find, on } from "../../shared/dom.js";
import { t } from "../../shared/i18n.js";
import { html, icon, mountView } from "../../shared/lit.js";

const NEAR_END_PX = 48;

/**
 * @param {HTMLElement} el
 * @param {{labelKey: string, emptyKey: string, newestKey: string}} words
 * @param {() => {isEmpty: boolean, rows: unknown}} turns
 * @returns {(hasNews: boolean) => void} draws it anew
 */
export function mountTalkList(el, { labelKey, emptyKey, newestKey }, turns) {
  let hasJump = false;
  el.classList.add("transcript");
  const draw = mountView(el, () => {
    const { isEmpty, rows } = turns();
    return html`<p class="talk-empty soft" ?hidden=${!isEmpty}>${t(emptyKey)}</p>
      <ol class="talk" tabindex="0" aria-live="off" aria-label=${t(labelKey)} ?hidden=${isEmpty}>
        ${rows}
      </ol>
      <button type="button" class="button talk-jump" ?hidden=${!hasJump} @click=${() => goToEnd()}>
        ${icon("down")}${t(newestKey)}
      </button>`;
  });
  const list = find(el, "ol", HTMLOListElement);
  // An empty list is not measured: that would lay the whole page out before it is first shown.
  const isAtEnd = () => list.hidden || list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END_PX;
  const showJump = (/** @type {boolean} */ isShown) => {
    if (hasJump === isShown) return;
    hasJump = isShown;
    draw();
  };
  const goToEnd = () => {
    if (!list.hidden) list.scrollTop = list.scrollHeight;
    showJump(false);
  };
  on(list, "scroll", () => {
    if (isAtEnd()) showJump(false);
  });
  return (hasNews) => {
    const wasAtEnd = isAtEnd();
    draw();
    if (wasAtEnd) goToEnd();
    else if (hasNews) showJump(true);
  };
}
