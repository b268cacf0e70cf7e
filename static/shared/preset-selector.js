// @ts-check
/**
 * Pills to choose a preset, remembered by the page; its sounds are fetched when it is chosen.
 */

import { getJson } from "./api.js";
import { fill, h, icon, on, setText } from "./dom.js";
import { getLang, onLangChange, t } from "./i18n.js";
import { applyPreset, firstPreset, hasSounds, wordsIn } from "./presets.js";
import { problemText } from "./problems.js";
import { toastProblem } from "./toast.js";

/** @typedef {import("./presets.js").AppliedPreset} AppliedPreset */
/** @typedef {Pick<Storage, "getItem" | "setItem">} KeptChoices */

/**
 * @typedef {Object} PresetSelectorOptions
 * @property {import("./presets.js").PresetMode} mode whose presets
 * @property {string} page short name for what is remembered: `<page>_preset`
 * @property {(applied: AppliedPreset) => void} onApply
 * @property {HTMLElement} [advanced] editors that the toggle shows and hides; no toggle without
 * @property {() => Promise<void>} [loadEditors] brings in the editors when they are shown; done before is done
 * @property {() => void} [onEdit] in the place of `advanced`: a button that leads to the editors
 * @property {HTMLElement} [overlayOver] is covered while sounds are fetched; `el` if left out
 * @property {KeptChoices | null} [storage]
 *
 * @typedef {Object} PresetSelector
 * @property {Promise<void>} ready the first preset was applied, or there is none
 * @property {string | null} presetId
 * @property {(isEdited: boolean) => void} setEdited say that what the preset set was changed since
 * @property {() => void} close
 */

/** @type {Promise<Record<string, Http.Preset[]>> | null} */
let listed = null;
/** @type {Map<string, Promise<Http.PresetSounds>>} */
const sounds = new Map();

/** @returns {Promise<Record<string, Http.Preset[]>>} */
function listPresets() {
  listed ??= getJson("/api/presets").then(
    (answer) => /** @type {Record<string, Http.Preset[]>} */ (answer),
    (error) => {
      listed = null;
      throw error;
    },
  );
  return listed;
}

/**
 * @param {string} mode
 * @param {Http.Preset} preset
 * @returns {Promise<Http.PresetSounds>}
 */
function soundsOf(mode, preset) {
  const key = `${mode}/${preset.id}`;
  const known = sounds.get(key);
  if (known) return known;
  /** @type {Promise<Http.PresetSounds>} */
  const loading = getJson(`/api/presets/${mode}/${encodeURIComponent(preset.id)}/audio`);
  sounds.set(key, loading);
  loading.catch(() => sounds.delete(key));
  return loading;
}

/** @returns {KeptChoices | null} */
function browserStorage() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

/**
 * @param {KeptChoices | null} storage
 * @param {string} key
 * @param {string} value
 */
function keep(storage, key, value) {
  try {
    storage?.setItem(key, value);
  } catch {
    // Storage may be full or forbidden; the choice then lasts as long as the page.
  }
}

/**
 * @param {HTMLElement} el
 * @param {PresetSelectorOptions} options
 * @returns {PresetSelector}
 */
export function mountPresetSelector(el, options) {
  const { mode, page, onApply, advanced, loadEditors, onEdit, overlayOver = el, storage = browserStorage() } = options;
  const parts = buildParts(Boolean(advanced ?? onEdit));
  el.classList.add("presets");
  fill(el, parts.nodes);
  overlayOver.classList.add("preset-covered");
  overlayOver.append(parts.overlay);

  /** @type {Http.Preset[]} */
  let presets = [];
  /** @type {Http.Preset | null} */
  let current = null;
  let isEdited = false;
  let isOpen = storage?.getItem(`${page}_advanced`) === "true";
  /** Latest wish; what an earlier one brings is dropped. */
  let wish = 0;

  const draw = () => {
    drawPills(parts.pills, presets, current);
    setText(parts.about, wordsIn(current?.description, getLang()));
    setText(parts.edited, isEdited ? t("preset.edited") : "");
    drawAdvanced(parts.toggle, advanced, isOpen);
    parts.pills.setAttribute("aria-label", t("preset.label"));
  };
  /** @param {Http.Preset} preset @param {boolean} isChosen */
  const apply = async (preset, isChosen) => {
    const mine = ++wish;
    const before = current;
    current = preset;
    isEdited = false;
    setText(parts.problem, "");
    draw();
    const uncover = coverWhile(parts.overlay, overlayOver, hasSounds(preset));
    try {
      const loaded = hasSounds(preset) ? await soundsOf(mode, preset) : null;
      if (mine !== wish) return;
      if (isChosen) keep(storage, `${page}_preset`, preset.id);
      onApply(applyPreset(preset, loaded, isChosen));
    } catch (error) {
      if (mine !== wish) return;
      current = before;
      draw();
      tellProblem(parts.problem, error);
    } finally {
      uncover();
    }
  };
  const showEditors = () => {
    draw();
    if (isOpen) loadEditors?.().catch(toastProblem);
  };
  const load = async () => {
    try {
      presets = (await listPresets())[mode] ?? [];
    } catch (error) {
      tellProblem(parts.problem, error);
      return;
    }
    draw();
    const first = firstPreset(presets, storage?.getItem(`${page}_preset`) ?? null, getLang());
    if (first) await apply(first, false);
  };
  const ends = [
    listenForChoice(
      parts.pills,
      () => presets,
      (preset) => void apply(preset, true),
    ),
    on(parts.toggle, "click", () => {
      if (onEdit) return onEdit();
      isOpen = !isOpen;
      keep(storage, `${page}_advanced`, String(isOpen));
      showEditors();
    }),
    onLangChange(draw),
  ];
  showEditors();
  return {
    ready: load(),
    get presetId() {
      return current?.id ?? null;
    },
    setEdited(value) {
      isEdited = value;
      draw();
    },
    close: () => ends.forEach((end) => end()),
  };
}

/** @param {boolean} hasAdvanced */
function buildParts(hasAdvanced) {
  const pills = h("div", { class: "row preset-pills", role: "radiogroup" });
  const toggle = h("button", { type: "button", class: "button button-quiet preset-toggle", hidden: !hasAdvanced });
  const about = h("p", { class: "hint preset-about" });
  const edited = h("p", { class: "hint", role: "status" });
  const problem = h("p", { class: "field-error", role: "alert" });
  const overlay = h("div", { class: "preset-overlay", role: "status", hidden: true });
  const nodes = [h("div", { class: "preset-line" }, pills, toggle), about, edited, problem];
  return { nodes, pills, toggle, about, edited, problem, overlay };
}

/**
 * @param {HTMLElement} pills
 * @param {readonly Http.Preset[]} presets
 * @param {Http.Preset | null} current
 */
function drawPills(pills, presets, current) {
  const hadFocus = pills.contains(document.activeElement);
  const buttons = presets.map((preset, index) => {
    const isCurrent = preset.id === current?.id;
    return h(
      "button",
      {
        type: "button",
        class: "pill",
        role: "radio",
        "aria-checked": String(isCurrent),
        title: wordsIn(preset.description, getLang()),
        tabindex: isCurrent || (!current && index === 0) ? 0 : -1,
        dataset: { preset: preset.id },
      },
      wordsIn(preset.name, getLang()) || preset.id,
    );
  });
  fill(pills, buttons);
  if (hadFocus) (buttons.find((button) => button.tabIndex === 0) ?? buttons[0])?.focus();
}

/**
 * @param {HTMLElement} toggle
 * @param {HTMLElement | undefined} advanced
 * @param {boolean} isOpen
 */
function drawAdvanced(toggle, advanced, isOpen) {
  fill(toggle, icon("edit"), t("preset.advanced"));
  if (!advanced) return;
  advanced.hidden = !isOpen;
  toggle.setAttribute("aria-expanded", String(isOpen));
  if (advanced.id) toggle.setAttribute("aria-controls", advanced.id);
}

/** How far each key goes in a group of radio buttons. @type {Record<string, number>} */
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/**
 * @param {HTMLElement} pills
 * @param {() => readonly Http.Preset[]} getPresets
 * @param {(preset: Http.Preset) => void} choose
 */
function listenForChoice(pills, getPresets, choose) {
  /** @param {EventTarget | null} target */
  const indexOf = (target) => {
    const pill = target instanceof Element ? target.closest("[data-preset]") : null;
    return getPresets().findIndex(({ id }) => id === pill?.getAttribute("data-preset"));
  };
  const endClick = on(pills, "click", (event) => {
    const preset = getPresets()[indexOf(event.target)];
    if (preset) choose(preset);
  });
  const endKeys = on(pills, "keydown", (/** @type {KeyboardEvent} */ event) => {
    const presets = getPresets();
    const index = indexOf(event.target);
    const last = presets.length - 1;
    const step = STEPS[event.key];
    let next = step ? (index + step + presets.length) % presets.length : -1;
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = last;
    if (index < 0 || next < 0) return;
    event.preventDefault();
    choose(presets[next]);
  });
  return () => {
    endClick();
    endKeys();
  };
}

/**
 * Covers an element while something is fetched; the result uncovers it.
 *
 * @param {HTMLElement} overlay
 * @param {HTMLElement} covered
 * @param {boolean} isNeeded
 */
function coverWhile(overlay, covered, isNeeded) {
  if (!isNeeded) return () => {};
  covers.set(overlay, (covers.get(overlay) ?? 0) + 1);
  fill(overlay, h("span", {}, t("preset.loading")), h("progress", { "aria-label": t("preset.loading") }));
  overlay.hidden = false;
  covered.setAttribute("aria-busy", "true");
  return () => {
    const left = (covers.get(overlay) ?? 1) - 1;
    covers.set(overlay, left);
    if (left > 0) return;
    overlay.hidden = true;
    covered.removeAttribute("aria-busy");
  };
}

/** How many wait under each overlay. @type {WeakMap<HTMLElement, number>} */
const covers = new WeakMap();

/** @param {HTMLElement} el @param {unknown} error */
function tellProblem(el, error) {
  const { title, nextStep } = problemText(/** @type {{code?: string}} */ (error));
  setText(el, `${t("preset.failed")} ${title} ${nextStep}`);
}
