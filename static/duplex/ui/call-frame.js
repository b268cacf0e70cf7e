// @ts-check
/** What every page of a call has: the orb with its words, the buttons, the list of turns. */

import { find, on } from "../../shared/dom.js";
import { formatClock } from "../../shared/formats.js";
import { t } from "../../shared/i18n.js";
import { html, icon, mountView, nothing } from "../../shared/lit.js";
import { mountOrb } from "./orb.js";

const TICK_MS = 500;
const MS_PER_S = 1_000;

/**
 * @typedef {Object} StageLook
 * @property {import("../lib/call-state.js").CallState} callState of the orb
 * @property {string} sign icon inside the orb, so that colour is not alone
 * @property {string} word
 * @property {string} hint
 */

/**
 * @param {HTMLElement} el
 * @param {Object} source
 * @param {() => {inputRms: number, outputRms: number}} source.levels
 * @param {() => number | null} source.lengthMs of the call so far; null before it
 * @param {() => StageLook} source.look
 * @returns {() => void} draws it anew
 */
export function mountStageFrame(el, { levels, lengthMs, look }) {
  /** @type {import("../lib/call-state.js").CallState | ""} */
  let orbState = "";
  el.classList.add("stage");
  const drawWords = mountView(el, () => {
    const { callState, sign, word, hint } = look();
    const ms = lengthMs();
    el.dataset.callState = callState;
    return html`<div class="orb-box"><canvas class="orb"></canvas><span class="orb-sign">${icon(sign)}</span></div>
      <p class="state-word" role="status" aria-live="polite">${word}</p>
      <p class="state-hint soft">${hint}</p>
      <p class="call-clock number soft" role="timer" aria-live="off">
        ${ms === null ? "" : formatClock(Math.floor(ms / MS_PER_S))}
      </p>`;
  });
  const orb = mountOrb(find(el, "canvas", HTMLCanvasElement), { levels });
  const draw = () => {
    drawWords();
    const { callState } = look();
    if (callState === orbState) return;
    orbState = callState;
    orb.update(callState);
  };
  setInterval(draw, TICK_MS);
  draw();
  return draw;
}

// The buttons of a call.

/**
 * @typedef {Object} CallButton
 * @property {string} action
 * @property {string} sign
 * @property {string} label
 * @property {() => void} run
 * @property {boolean} isShown
 * @property {string} [style]
 * @property {boolean} [isOff] it cannot be pressed now; it keeps its focus, so it is not disabled for the browser
 * @property {boolean} [isPressed]
 * @property {string} [title]
 */

/**
 * @param {HTMLElement} el
 * @param {string} labelKey
 * @param {() => CallButton[]} buttons in their order
 * @returns {() => void} draws them anew
 */
export function mountCallControls(el, labelKey, buttons) {
  el.classList.add("call-controls");
  el.setAttribute("role", "group");
  return mountView(el, () => {
    el.setAttribute("aria-label", t(labelKey));
    return buttons().map(button);
  });
}

/** @param {CallButton} look */
const button = ({ action, sign, label, run, isShown, style = "call-button", isOff = false, isPressed, title }) =>
  html`<button
    type="button"
    class="button ${style}"
    data-action=${action}
    ?hidden=${!isShown}
    aria-disabled=${String(isOff)}
    aria-pressed=${isPressed === undefined ? nothing : String(isPressed)}
    title=${title ?? nothing}
    @click=${() => !isOff && run()}
  >
    ${icon(sign)}<span class="call-label">${label}</span>
  </button>`;

export const START_STYLE = "button-primary button-large call-start";
export const STOP_STYLE = "button-danger call-button";

// Who said what, turn by turn: follows its end while that is seen, and else offers a way there.

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
