// @ts-check
/**
 * The settings of `DuplexConfig` as fields of a page's settings, and as a form.
 */

import { h, setText } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { DUPLEX_CONFIG_DEFAULTS as GIVEN } from "../../shared/protocol.js";

/** @typedef {import("../../shared/settings-store.js").Field} Field */
/** @typedef {import("../../shared/protocol.js").DuplexConfig} DuplexConfig */

/**
 * @param {number} initial
 * @param {number} min
 * @param {number} max
 * @param {number} step
 * @returns {import("../../shared/settings-store.js").NumberField}
 */
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
  decode_mode: /** @type {import("../../shared/settings-store.js").ChoiceField} */ ({
    type: "choice",
    initial: GIVEN.decode_mode,
    choices: ["sampling", "greedy"],
  }),
  generate_audio: /** @type {import("../../shared/settings-store.js").BooleanField} */ ({
    type: "boolean",
    initial: GIVEN.generate_audio,
  }),
});

/** @typedef {keyof typeof DUPLEX_FIELDS} DuplexSetting */

/** The form's order; the length penalty stands among the everyday settings of a page. */
const SHOWN = /** @type {DuplexSetting[]} */ (Object.keys(DUPLEX_FIELDS)).filter((name) => name !== "length_penalty");

/**
 * @param {{get: (name: DuplexSetting) => unknown}} store
 * @returns {DuplexConfig}
 */
export function duplexConfigOf(store) {
  const names = /** @type {DuplexSetting[]} */ (Object.keys(DUPLEX_FIELDS));
  return Object.fromEntries(names.map((name) => [name, store.get(name)]));
}

/**
 * Builds the inputs; `bindSettings` on a root around them ties them to the store.
 *
 * @param {HTMLElement} el
 */
export function mountDuplexConfigForm(el) {
  /** @type {[Element, string][]} */
  const texts = [];
  const labelled = (/** @type {Element} */ node, /** @type {string} */ key) => {
    texts.push([node, key]);
    return node;
  };
  for (const name of SHOWN) {
    const field = /** @type {Field} */ (DUPLEX_FIELDS[name]);
    const id = `config-${name}`;
    const label = labelled(h("label", { for: id }), `config.${name}`);
    const hint = labelled(h("p", { class: "hint", id: `${id}-hint` }), `config.${name}_hint`);
    el.append(h("div", { class: "field field-row" }, label, ...inputOf(name, field, id, labelled), hint));
  }
  const draw = () => texts.forEach(([node, key]) => setText(node, t(key)));
  onLangChange(draw);
  draw();
}

/**
 * @param {string} name
 * @param {Field} field
 * @param {string} id
 * @param {(node: Element, key: string) => Element} labelled
 * @returns {Element[]}
 */
function inputOf(name, field, id, labelled) {
  const common = { id, dataset: { setting: name }, "aria-describedby": `${id}-hint` };
  if (field.type === "boolean") return [h("input", { ...common, type: "checkbox", role: "switch" })];
  if (field.type === "choice") {
    const choices = field.choices.map((value) => labelled(h("option", { value }), `config.${name}_${value}`));
    return [h("select", common, choices)];
  }
  return [h("output", { class: "number", for: id, dataset: { valueOf: name } }), h("input", { ...common, type: "range" })];
}
