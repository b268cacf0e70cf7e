// @ts-check
/**
 * Ties the inputs of a form to a page's settings: `data-setting="name"`, `<output data-value-of="name">`; and the drawer
 * that they stand in.
 */

import { find, on, setText } from "./dom.js";
import { formatNumber } from "./formats.js";
import { onLangChange } from "./i18n.js";
import { toastProblem } from "./notice.js";

/** @import { Field, SettingsStore } from "./settings-store.js" */

/** @typedef {SettingsStore<Record<string, Field>>} AnyStore */

/** @param {HTMLElement} root @param {AnyStore} store @returns {() => void} ends it */
export function bindSettings(root, store) {
  const inputs = [...root.querySelectorAll("[data-setting]")].filter(isInput);
  for (const input of inputs) prepare(input, store);
  const update = () => {
    for (const input of inputs) show(input, store);
    for (const output of root.querySelectorAll("[data-value-of]")) showValue(output, store);
  };
  const ends = inputs.map((input) => on(input, "change", () => store.set(input.dataset.setting ?? "", valueOf(input))));
  ends.push(on(store, "change", update), onLangChange(update));
  // While a slider moves its number moves along; the setting changes when it is let go.
  ends.push(on(root, "input", (event) => previewRange(root, event.target)));
  update();
  return () => ends.forEach((end) => end());
}

/** @param {Element} element @returns {element is HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} */
function isInput(element) {
  return element instanceof HTMLInputElement || element instanceof HTMLSelectElement || element instanceof HTMLTextAreaElement;
}

/** @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} input */
function valueOf(input) {
  const isSwitch = input instanceof HTMLInputElement && input.type === "checkbox";
  return isSwitch ? input.checked : input.value;
}

/** @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} input @param {AnyStore} store */
function prepare(input, store) {
  const field = store.fields[input.dataset.setting ?? ""];
  if (!field) throw new Error(`There is no setting "${input.dataset.setting}".`);
  if (field.type === "number" && input instanceof HTMLInputElement) {
    input.min = String(field.min);
    input.max = String(field.max);
    input.step = String(field.step ?? "any");
  }
  if (field.type === "text" && field.maxLength && !(input instanceof HTMLSelectElement)) {
    input.maxLength = field.maxLength;
  }
}

/** @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} input @param {AnyStore} store */
function show(input, store) {
  const value = store.get(input.dataset.setting ?? "");
  if (input instanceof HTMLInputElement && input.type === "checkbox") input.checked = value === true;
  else input.value = String(value);
}

/** @param {Element} output @param {AnyStore} store */
function showValue(output, store) {
  const name = output.getAttribute("data-value-of") ?? "";
  setText(output, display(store.get(name), store.fields[name]));
}

/** @param {HTMLElement} root @param {EventTarget | null} target */
function previewRange(root, target) {
  if (!(target instanceof HTMLInputElement) || target.type !== "range") return;
  const output = root.querySelector(`[data-value-of="${target.dataset.setting}"]`);
  if (output) setText(output, formatNumber(target.valueAsNumber, digitsOf(Number(target.step))));
}

/** @param {string | number | boolean} value @param {Field} field */
function display(value, field) {
  if (typeof value !== "number") return String(value);
  return formatNumber(value, field.type === "number" ? digitsOf(field.step ?? 1) : 0);
}

/** @param {number} step */
function digitsOf(step) {
  return Number.isFinite(step) ? Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)) : 0;
}

// The settings of a live page: a drawer at the side.

/**
 * @param {HTMLDialogElement} dialog
 * @param {HTMLButtonElement} opener
 * @param {AnyStore} store
 * @param {() => Promise<unknown>} loadContent brings in what only the open drawer shows; done before is done
 */
export function mountSettingsDrawer(dialog, opener, store, loadContent) {
  bindSettings(dialog, store);
  const open = () => {
    dialog.showModal();
    loadContent().catch(toastProblem);
  };
  on(opener, "click", open);
  on(find(dialog, "[data-action=close-settings]", HTMLButtonElement), "click", () => dialog.close());
  on(find(dialog, "[data-action=reset-settings]", HTMLButtonElement), "click", () => store.reset());
  // A click beside the drawer lands on the dialog itself.
  on(dialog, "click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return { open, close: () => dialog.close() };
}
