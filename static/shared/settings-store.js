/**
 * A page's settings: declared once, validated and stored. Pure.
 *
 * Precedence: preset, the visitor's choice, the server's default, the page's default.
 */

import { remember, rememberedJson } from "./memory.js";

/** @import { SmallStorage } from "./memory.js" */

/**
 * @typedef {{type: "number", initial: number, min: number, max: number, step: number}} NumberField a step of 1 restricts it to integers
 * @typedef {{type: "boolean", initial: boolean}} BooleanField
 * @typedef {{type: "choice", initial: string, choices: readonly string[]}} ChoiceField
 * @typedef {NumberField | BooleanField | ChoiceField} Field
 * @typedef {Field["initial"]} Value
 */

/** Returns the validated value, or null. @param {Field} field @param {unknown} value @returns {Value | null} */
export function accept(field, value) {
  switch (field.type) {
    case "number": {
      const number = typeof value === "string" && value.trim() === "" ? Number.NaN : Number(value);
      if (!Number.isFinite(number)) return null;
      const bounded = Math.min(Math.max(number, field.min), field.max);
      return field.step === 1 ? Math.round(bounded) : bounded;
    }
    case "boolean":
      return typeof value === "boolean" ? value : null;
    case "choice":
      return field.choices.find((choice) => choice === value) ?? null;
  }
}

/** A page's settings. Events: `change` whenever a value may have changed. @template {Record<string, Field>} F */
export class SettingsStore extends EventTarget {
  /** @type {Record<string, Value>} */ #server = {};
  /** @type {Record<string, Value>} */ #chosen = {};
  /** @type {Record<string, Value>} */ #preset = {};

  /** @param {string} storageKey @param {F} fields @param {SmallStorage | null} [storage] the browser's own if left out; null: none */
  constructor(storageKey, fields, storage) {
    super();
    this.fields = fields;
    this.storageKey = storageKey;
    this.storage = storage;
    this.#chosen = this.#stored();
  }

  /** @template {keyof F & string} N @param {N} name @returns {F[N]["initial"]} */
  get(name) {
    return /** @type {F[N]["initial"]} */ (
      this.#preset[name] ?? this.#chosen[name] ?? this.#server[name] ?? this.fields[name].initial
    );
  }

  /** Invalid values are ignored. @param {keyof F & string} name @param {unknown} value */
  set(name, value) {
    const accepted = accept(this.fields[name], value);
    if (accepted !== null) {
      this.#chosen[name] = accepted;
      delete this.#preset[name];
      // Another tab may have stored choices meanwhile.
      remember(this.storageKey, JSON.stringify({ ...this.#stored(), [name]: accepted }), this.storage);
    }
    this.#changed();
  }

  /** @param {Record<string, unknown>} values of the server */
  applyServer(values) {
    this.#server = this.#accepted(values);
    this.#changed();
  }

  /** @param {Record<string, unknown>} values of a preset, replacing the previous one */
  applyPreset(values) {
    this.#preset = this.#accepted(values);
    this.#changed();
  }

  reset() {
    this.#chosen = {};
    this.#preset = {};
    remember(this.storageKey, null, this.storage);
    this.#changed();
  }

  #stored() {
    return this.#accepted(/** @type {Record<string, unknown>} */ (Object(rememberedJson(this.storageKey, this.storage))));
  }

  #accepted(/** @type {Record<string, unknown>} */ values) {
    /** @type {Record<string, Value>} */ const accepted = {};
    for (const [name, field] of Object.entries(this.fields)) {
      const value = name in values ? accept(field, values[name]) : null;
      if (value !== null) accepted[name] = value;
    }
    return accepted;
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

/** @param {number} initial @param {number} min @param {number} max @param {number} step @returns {NumberField} */
export const numberField = (initial, min, max, step) => ({ type: "number", initial, min, max, step });
/** @param {boolean} initial @returns {BooleanField} */
export const flagField = (initial) => ({ type: "boolean", initial });
/** @param {string} initial @param {readonly string[]} choices @returns {ChoiceField} */
export const choiceField = (initial, choices) => ({ type: "choice", initial, choices });
