// @ts-check
/** The middle of every call page: the orb with a sign, the word for what goes on, a line of help, the clock. */

import { find } from "../../shared/dom.js";
import { formatClock } from "../../shared/formats.js";
import { html, icon, mountView } from "../../shared/lit.js";
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
