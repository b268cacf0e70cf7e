/**
 * Draws settings as rows of a form, and binds inputs to them: `data-setting="name"`, `<output data-value-of="name">`. Also the
 * settings drawer, radio pills, and the preset selector, which remembers the choice per page and fetches a preset's audio when it is chosen.
 */

import { closeByClick, find, html, icon, mountView, nothing, on, setText, textButton, toastProblem } from "./lit.js";
import { formatNumber, getLang, hasText, onLangChange, problemWords, t } from "./texts.js";
import { getJson } from "./api.js";
import { kept } from "./async.js";
import { applyPreset, firstPreset, hasSounds, wordsIn } from "./prompt.js";
import { remember, remembered } from "./memory.js";

/** @import { Field, SettingsStore } from "./settings-store.js" */
/** @import { AppliedPreset, PresetMode } from "./prompt.js" */

/** @typedef {SettingsStore<Record<string, Field>>} AnyStore */

export function bindSettings(/** @type {HTMLElement} */ root, /** @type {AnyStore} */ store) {
  for (const el of root.querySelectorAll("[data-rows]")) if (el instanceof HTMLElement) mountRows(el, store);
  /** @type {NodeListOf<HTMLInputElement | HTMLSelectElement>} */ const inputs = root.querySelectorAll("[data-setting]");
  for (const input of inputs) {
    const name = input.dataset.setting ?? "";
    const field = fieldOf(store, name);
    if (field.type === "number" && input instanceof HTMLInputElement) {
      for (const bound of /** @type {const} */ (["min", "max", "step"])) input[bound] = String(field[bound]);
    }
    on(input, "change", () => store.set(name, isSwitch(input) ? input.checked : input.value));
  }
  const update = () => {
    for (const input of inputs) {
      const value = store.get(input.dataset.setting ?? "");
      if (isSwitch(input)) input.checked = value === true;
      else input.value = String(value);
    }
    for (const output of root.querySelectorAll("[data-value-of]")) {
      const name = output.getAttribute("data-value-of") ?? "";
      const [value, field] = [store.get(name), store.fields[name]];
      const digits = field.type === "number" ? digitsOf(field.step) : 0;
      setText(output, typeof value === "number" ? formatNumber(value, digits) : String(value));
    }
  };
  on(store, "change", update);
  onLangChange(update);
  // While a slider is dragged only its number changes; the setting changes on release.
  on(root, "input", ({ target }) => {
    if (!(target instanceof HTMLInputElement) || target.type !== "range") return;
    const output = root.querySelector(`[data-value-of="${target.dataset.setting}"]`);
    if (output) setText(output, formatNumber(target.valueAsNumber, digitsOf(Number(target.step))));
  });
  update();
}

/** `data-rows="TEXTS: NAME …"` lists settings; TEXTS begins the keys of their texts. @param {HTMLElement} el @param {AnyStore} store */
function mountRows(el, store) {
  const [texts, names] = (el.dataset.rows ?? "").split(":");
  mountView(el, () => names.match(/\w+/g)?.map((name) => settingRow(texts, name, fieldOf(store, name))));
}

/** A setting with its texts TEXTS.NAME, TEXTS.NAME_hint if there is one, and TEXTS.NAME_VALUE. @param {string} texts @param {string} name @param {Field} field */
export function settingRow(texts, name, field) {
  const id = `set-${name}`;
  const key = [texts, name].join(".");
  const hasHint = hasText(key + "_hint");
  const about = hasHint ? `${id}-hint` : nothing;
  const hint = hasHint ? html`<p class="hint" id=${about}>${t(key + "_hint")}</p>` : nothing;
  if (field.type === "boolean")
    return html`<div>
      <label class="check"
        ><input type="checkbox" role="switch" data-setting=${name} aria-describedby=${about} /><span>${t(key)}</span></label
      >${hint}
    </div>`;
  if (field.type === "number")
    return html`<div class="field field-row">
      <label for=${id}>${t(key)}</label><output class="number" for=${id} data-value-of=${name}></output>
      <input type="range" id=${id} data-setting=${name} aria-describedby=${about} />${hint}
    </div>`;
  const words = (/** @type {string} */ value) => (hasText([key, value].join("_")) ? t([key, value].join("_")) : value);
  return html`<div class="field">
    <label for=${id}>${t(key)}</label>
    <select id=${id} data-setting=${name} aria-describedby=${about}>
      ${field.choices.map((value) => html`<option value=${value}>${words(value)}</option>`)}</select
    >${hint}
  </div>`;
}

/** @param {AnyStore} store @param {string} name @returns {Field} */
function fieldOf(store, name) {
  const field = store.fields[name];
  if (!field) throw new Error(`There is no setting "${name}".`);
  return field;
}

/** @param {Element} input @returns {input is HTMLInputElement} */
const isSwitch = (input) => input instanceof HTMLInputElement && input.type === "checkbox";

const digitsOf = (/** @type {number} */ step) => Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));

// The settings drawer of a page.

/**
 * @param {HTMLDialogElement} dialog
 * @param {HTMLButtonElement} opener
 * @param {AnyStore} store
 * @param {() => Promise<unknown>} loadContent loads, once, what only the open drawer shows
 */
export function mountSettingsDrawer(dialog, opener, store, loadContent) {
  let isBound = false;
  const open = () => {
    if (!isBound) bindSettings(dialog, store);
    isBound = true;
    dialog.showModal();
    loadContent().catch(toastProblem);
  };
  on(opener, "click", open);
  on(find(dialog, "[data-action=reset-settings]", HTMLButtonElement), "click", () => store.reset());
  closeByClick(dialog);
  return { open };
}

// A row of pills that behaves as a radio group.

/**
 * @typedef {{value: string, text: string, title?: string, icon?: string}} Pill
 *
 * @param {Object} options
 * @param {string} options.label
 * @param {string} options.style classes of the row
 * @param {readonly Pill[]} options.pills
 * @param {string | null} options.current
 * @param {(value: string) => void} options.choose
 */
function radioPills({ label, style, pills, current, choose }) {
  const at = Math.max(
    0,
    pills.findIndex(({ value }) => value === current),
  );
  const last = pills.length - 1;
  /** @type {Record<string, number>} */
  const targets = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
  const onKey = (/** @type {KeyboardEvent & {currentTarget: HTMLElement}} */ event) => {
    const target = targets[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const group = event.currentTarget;
    choose(pills[(target + pills.length) % pills.length].value);
    focusCurrent(group);
  };
  return html`<div class=${style} role="radiogroup" aria-label=${label} @keydown=${onKey}>
    ${pills.map(
      (pill, index) =>
        html`<button
          type="button"
          class="pill"
          role="radio"
          data-kind=${pill.value}
          aria-checked=${String(pill.value === current)}
          tabindex=${index === at ? 0 : -1}
          title=${pill.title ?? nothing}
          @click=${() => choose(pill.value)}
        >
          ${pill.icon ? html`${icon(pill.icon)} ` : nothing}${pill.text}
        </button>`,
    )}
  </div>`;
}

/**
 * Pills with an icon each.
 * @param {Readonly<Record<string, string>>} icons by value
 * @param {{label: string, text: (value: string) => string, current: string, choose: (value: string) => void}} look
 */
export const iconPills = (icons, { text, ...look }) =>
  radioPills({
    ...look,
    style: "source-choice",
    pills: Object.entries(icons).map(([value, icon]) => ({ value, text: text(value), icon })),
  });

/** Focuses the checked pill, the only one in the tab order. @param {HTMLElement} el */
function focusCurrent(el) {
  const current = el.querySelector('[role=radio][tabindex="0"]');
  if (current instanceof HTMLElement) current.focus();
}

/**
 * @typedef {Object} PresetSelectorOptions
 * @property {PresetMode} mode whose presets are listed
 * @property {string} page prefix of the storage key: `<page>_preset`
 * @property {(applied: AppliedPreset) => void} onApply
 * @property {HTMLElement} [advanced] editors that the toggle shows and hides
 * @property {() => Promise<void>} [loadEditors] loads the editors when they are first shown
 * @property {() => void} [onEdit] instead of `advanced`: opens the editors elsewhere
 */

/** By path. @type {Map<string, Promise<any>>} `any`: the presets, or the sounds of one */ const answers = new Map();

/** @param {string} path @returns {Promise<any>} as above */
const getOnce = (path) => kept(answers, path, () => getJson(path));

/** @param {HTMLElement} el @param {PresetSelectorOptions} options */
export function mountPresetSelector(el, { mode, page, onApply, advanced, loadEditors, onEdit }) {
  /** @type {Http.Preset[]} */ let presets = [];
  /** @type {Http.Preset | null} */ let current = null;
  let isEdited = false;
  let isOpen = remembered(`${page}_advanced`) === "true";
  let problem = "";
  /** Number of pending downloads; the pills are covered meanwhile. */
  let loading = 0;
  /** Number of the latest request; results of earlier ones are dropped. */
  let request = 0;

  const apply = async (/** @type {Http.Preset} */ preset, /** @type {boolean} */ isChosen) => {
    const own = ++request;
    const before = current;
    const needsSounds = hasSounds(preset);
    current = preset;
    isEdited = false;
    problem = "";
    loading += Number(needsSounds);
    draw();
    try {
      const path = `/api/presets/${mode}/${encodeURIComponent(preset.id)}/audio`;
      /** @type {Http.PresetSounds | null} */ const loaded = needsSounds ? await getOnce(path) : null;
      if (own !== request) return;
      if (isChosen) remember(`${page}_preset`, preset.id);
      onApply(applyPreset(preset, loaded, isChosen));
    } catch (error) {
      if (own !== request) return;
      current = before;
      problem = `${t("preset.failed")} ${problemWords(error)}`;
    } finally {
      loading -= Number(needsSounds);
      draw();
    }
  };
  const showEditors = () => {
    if (advanced) advanced.hidden = !isOpen;
    draw();
    if (isOpen) loadEditors?.().catch(toastProblem);
  };
  const load = async () => {
    try {
      presets = (await getOnce("/api/presets"))[mode] ?? [];
    } catch (error) {
      problem = `${t("preset.failed")} ${problemWords(error)}`;
    }
    current = firstPreset(presets, remembered(`${page}_preset`), getLang());
    draw();
    return current;
  };
  const listed = load();
  const applyFirst = async () => {
    const first = await listed;
    if (!first || request > 0) return; // the visitor has chosen meanwhile
    current = null; // as it stays if the sounds cannot be loaded
    await apply(first, false);
  };
  /** @type {Promise<void> | null} */ let applied = null;
  const onToggle = () => {
    if (onEdit) return onEdit();
    isOpen = !isOpen;
    remember(`${page}_advanced`, String(isOpen));
    showEditors();
  };
  const choose = (/** @type {string} */ id) => {
    const preset = presets.find((one) => one.id === id);
    if (preset) void apply(preset, true);
  };
  const view = () => {
    el.ariaBusy = loading > 0 ? "true" : null;
    const pills = presets.map(({ id, name, description }) => ({
      value: id,
      text: wordsIn(name, getLang()) || id,
      title: wordsIn(description, getLang()),
    }));
    return html`<div class="preset-line">
        ${radioPills({ label: t("preset.label"), style: "row preset-pills", pills, current: current?.id ?? null, choose })}
        ${textButton(t("preset.advanced"), onToggle, {
          sign: "edit",
          style: "button-quiet preset-toggle",
          isShown: Boolean(advanced ?? onEdit),
          isExpanded: advanced && isOpen,
          controls: advanced?.id,
        })}
      </div>
      <p class="hint preset-about" .textContent=${wordsIn(current?.description, getLang())}></p>
      <p class="hint" role="status" .textContent=${isEdited ? t("preset.edited") : ""}></p>
      <p class="field-error" role="alert" .textContent=${problem}></p>
      <div class="preset-overlay" role="status" ?hidden=${loading === 0}>
        ${loading > 0 ? html`<span>${t("preset.loading")}</span><progress aria-label=${t("preset.loading")}></progress>` : nothing}
      </div>`;
  };
  el.classList.add("presets", "preset-covered");
  const drawView = mountView(el, view);
  /** If a preset fails to load, focus returns to the previous one. */
  const draw = () => {
    const hadFocus = document.activeElement?.role === "radio" && el.contains(document.activeElement);
    drawView();
    if (hadFocus) focusCurrent(el);
  };
  showEditors();
  return {
    /** Applies the first preset, once: its sounds are the largest download of a page, which is shown before. */
    ready: () => (applied ??= applyFirst()),
    /** @param {boolean} value the visitor has changed what the preset set */
    setEdited(value) {
      isEdited = value;
      draw();
    },
  };
}
