// @ts-check
/** A box to choose or drop a file in place of a device: what it is, what is wrong with it, and silence around it. */

import { find, on } from "../../shared/dom.js";
import { t } from "../../shared/i18n.js";
import { html, icon, mountView } from "../../shared/lit.js";

/**
 * @typedef {Object} FileBoxLook
 * @property {boolean} isShown
 * @property {string} choose words of the button
 * @property {string} about
 * @property {string} problem "" if there is none
 * @property {unknown} [picture] of the file
 * @property {unknown} [sounds] which sound is taken
 * @property {unknown} [more]
 *
 * @typedef {{draw: () => void, focus: () => void}} FileBox
 */

/** @param {string} id @param {string} setting @param {string} labelKey */
const padding = (id, setting, labelKey) =>
  html`<div class="field"><label for=${id}>${t(labelKey)}</label><input type="number" id=${id} data-setting=${setting} /></div>`;

/**
 * Its inputs carry `data-setting`: bind the settings on a root around it afterwards.
 * @param {HTMLElement} el
 * @param {{accept: string, take: (file: File) => void, look: () => FileBoxLook}} options
 * @returns {FileBox}
 */
export function mountFileBox(el, { accept, take, look }) {
  /** @param {{target: HTMLInputElement}} event */
  const onFile = ({ target }) => {
    const [file] = target.files ?? [];
    if (file) take(file);
    target.value = ""; // the same file may be chosen again
  };
  el.classList.add("file-box");
  const draw = mountView(el, () => {
    const { isShown, choose, about, problem, picture, sounds, more } = look();
    el.hidden = !isShown;
    return html`<div class="row">
        <button
          type="button"
          class="button"
          data-action="choose-file"
          @click=${() => find(el, "[type=file]", HTMLElement).click()}
        >
          ${icon("upload")}${choose}</button
        ><input type="file" accept=${accept} hidden tabindex="-1" @change=${onFile} />
        <p class="small" role="status">${about}</p>
      </div>
      ${picture}
      <p class="field-error" role="alert" .textContent=${problem}></p>
      ${sounds}
      <div class="file-padding">
        ${padding("pad-before", "pad_before_s", "adx.pad_before")}${padding("pad-after", "pad_after_s", "adx.pad_after")}
      </div>
      ${more}`;
  });
  on(el, "dragover", (event) => event.preventDefault());
  on(el, "drop", (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file) take(file);
  });
  return { draw, focus: () => find(el, "button", HTMLElement).focus() };
}
