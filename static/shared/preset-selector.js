/** Preset selector: remembers the choice per page and fetches a preset's audio when it is chosen. */

import { getJson } from "./api.js";
import { kept } from "./async.js";
import { getLang, problemWords, t } from "./texts.js";
import { html, icon, mountView, nothing } from "./lit.js";
import { focusCurrent, radioPills } from "./settings-form.js";
import { applyPreset, firstPreset, hasSounds, wordsIn } from "./prompt.js";
import { toastProblem } from "./notice.js";
import { remember, remembered } from "./memory.js";

/** @import { AppliedPreset, PresetMode } from "./prompt.js" */

/**
 * @typedef {Object} PresetSelectorOptions
 * @property {PresetMode} mode whose presets are listed
 * @property {string} page prefix of the storage key: `<page>_preset`
 * @property {(applied: AppliedPreset) => void} onApply
 * @property {HTMLElement} [advanced] editors that the toggle shows and hides
 * @property {() => Promise<void>} [loadEditors] loads the editors when they are first shown
 * @property {() => void} [onEdit] instead of `advanced`: opens the editors elsewhere
 */

/** @type {Map<string, Promise<Record<string, Http.Preset[]>>>} */ const lists = new Map();
/** @type {Map<string, Promise<Http.PresetSounds>>} */ const sounds = new Map();

/** @param {string} mode @param {Http.Preset} preset */
function soundsOf(mode, preset) {
  const path = `/api/presets/${mode}/${encodeURIComponent(preset.id)}/audio`;
  return kept(sounds, path, () => getJson(path));
}

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
      const loaded = needsSounds ? await soundsOf(mode, preset) : null;
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
      presets = (await kept(lists, "", () => getJson("/api/presets")))[mode] ?? [];
    } catch (error) {
      problem = `${t("preset.failed")} ${problemWords(error)}`;
    }
    draw();
    const first = firstPreset(presets, remembered(`${page}_preset`), getLang());
    if (first) await apply(first, false);
  };
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
        <button
          type="button"
          class="button button-quiet preset-toggle"
          ?hidden=${!advanced && !onEdit}
          aria-expanded=${advanced ? String(isOpen) : nothing}
          aria-controls=${advanced?.id || nothing}
          @click=${onToggle}
        >
          ${icon("edit")}${t("preset.advanced")}
        </button>
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
    ready: load(), // resolves once the first preset is applied, if there is one
    /** @param {boolean} value the visitor has changed what the preset set */
    setEdited(value) {
      isEdited = value;
      draw();
    },
  };
}
