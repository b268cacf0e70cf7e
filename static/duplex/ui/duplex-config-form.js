// @ts-check
/** The settings of `DuplexConfig` as fields of a page's settings, and as a form. */

import { t } from "../../shared/i18n.js";
import { html, mountView } from "../../shared/lit.js";
import { DUPLEX_CONFIG_DEFAULTS as GIVEN } from "../../shared/protocol.js";

/** @import { DuplexConfig } from "../../shared/protocol.js" */
/** @import { BooleanField, ChoiceField, Field, NumberField } from "../../shared/settings-store.js" */

/** @param {number} initial @param {number} min @param {number} max @param {number} step @returns {NumberField} */
const number = (initial, min, max, step) => ({ type: "number", initial, min, max, step });

/** What the server accepts, by the names of `DuplexConfig`. */
export const DUPLEX_FIELDS = Object.freeze({
  length_penalty: number(GIVEN.length_penalty, 0.5, 2, 0.05),
  force_listen_count: number(GIVEN.force_listen_count, 0, 20, 1),
  max_new_speak_tokens_per_chunk: number(GIVEN.max_new_speak_tokens_per_chunk, 1, 100, 1),
  listen_prob_scale: number(GIVEN.listen_prob_scale, 0.1, 3, 0.05),
  temperature: number(GIVEN.temperature, 0, 2, 0.05),
  top_k: number(GIVEN.top_k, 0, 200, 1),
  top_p: number(GIVEN.top_p, 0.05, 1, 0.05),
  text_repetition_penalty: number(GIVEN.text_repetition_penalty, 0.5, 2, 0.01),
  tts_temperature: number(GIVEN.tts_temperature, 0, 2, 0.05),
  decode_mode: /** @type {ChoiceField} */ ({ type: "choice", initial: GIVEN.decode_mode, choices: ["sampling", "greedy"] }),
  generate_audio: /** @type {BooleanField} */ ({ type: "boolean", initial: GIVEN.generate_audio }),
});

/** @typedef {keyof typeof DUPLEX_FIELDS} DuplexSetting */

/** The form's order; the length penalty stands among the everyday settings of a page. */
const SHOWN = /** @type {DuplexSetting[]} */ (Object.keys(DUPLEX_FIELDS)).filter((name) => name !== "length_penalty");

/** @param {{get: (name: DuplexSetting) => unknown}} store @returns {DuplexConfig} */
export function duplexConfigOf(store) {
  const names = /** @type {DuplexSetting[]} */ (Object.keys(DUPLEX_FIELDS));
  return Object.fromEntries(names.map((name) => [name, store.get(name)]));
}

/** Builds the inputs; `bindSettings` on a root around them ties them to the store. @param {HTMLElement} el */
export function mountDuplexConfigForm(el) {
  mountView(el, () =>
    SHOWN.map(
      (name) =>
        html`<div class="field field-row">
          <label for="config-${name}">${t(`config.${name}`)}</label>${inputOf(name)}
          <p class="hint" id="config-${name}-hint">${t(`config.${name}_hint`)}</p>
        </div>`,
    ),
  );
}

/** @param {DuplexSetting} name */
function inputOf(name) {
  const field = /** @type {Field} */ (DUPLEX_FIELDS[name]);
  const [id, hint] = [`config-${name}`, `config-${name}-hint`];
  if (field.type === "boolean")
    return html`<input id=${id} data-setting=${name} aria-describedby=${hint} type="checkbox" role="switch" />`;
  if (field.type === "choice") {
    return html`<select id=${id} data-setting=${name} aria-describedby=${hint}>
      ${field.choices.map((value) => html`<option value=${value}>${t(`config.${name}_${value}`)}</option>`)}
    </select>`;
  }
  return html`<output class="number" for=${id} data-value-of=${name}></output>
    <input id=${id} data-setting=${name} aria-describedby=${hint} type="range" />`;
}
