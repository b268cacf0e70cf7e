// @ts-check
/** Instructions of a live call and its voices: preset, instructions, voice samples. */

import { t } from "../../shared/texts.js";
import { late } from "../../shared/late.js";
import { html, mountView } from "../../shared/lit.js";
import { toastProblem } from "../../shared/notice.js";
import { byId } from "../../shared/dom.js";
import { mountLateHelp } from "../../shared/late-parts.js";
import { mountPresetSelector } from "../../shared/preset-selector.js";
import { voiceLimits, voiceToWire } from "../../shared/prompt.js";
import { bindSettings, mountSettingsDrawer } from "../../shared/settings-form.js";
import { mountHeadphonesAdvice, mountModelNote, mountServiceNote } from "./call-notes.js";
import { DUPLEX_FIELDS } from "../lib/call-settings.js";

/** @import { AppliedPreset, Voice, VoiceLimits } from "../../shared/prompt.js" */
/** @import { RefAudioPlayer, TtsVoice } from "../../shared/ref-audio-player.js" */
/** @import { Page } from "../../shared/page.js" */
/** @import { AnyStore } from "../../shared/settings-form.js" */
/** @import { Field } from "../../shared/settings-store.js" */
/** @import { DuplexSetting } from "../lib/call-settings.js" */
/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { SileroDetector } from "../lib/silero-gate.js" */

const loadServerVoices = late(() => import("../../shared/decode-sound.js"));
const importEditors = () => import("../../shared/ref-audio-player.js");

/**
 * What both pages of full duplex have around a call: settings, instructions, notes, help.
 * @param {{mode: "audio_duplex" | "omni", page: Page, store: AnyStore}} options
 */
export function mountDuplexSetup({ mode, page, store }) {
  const part = (/** @type {string} */ id) => byId(id, HTMLElement);
  if (page.defaults) {
    const { playback_delay_ms, max_kv_tokens } = page.defaults;
    store.applyServer({ playback_delay_ms, max_kv_tokens });
  }
  mountDuplexConfigForm(part("config-form"));
  const dialog = byId("settings", HTMLDialogElement);
  const drawer = mountSettingsDrawer(dialog, byId("open-settings", HTMLButtonElement), store, () => prompt.loadEditors());
  bindSettings(part("main"), store);
  mountHeadphonesAdvice(part("advice"));
  mountServiceNote(part("service-note"), page);
  mountLateHelp(mode === "omni" ? "omni" : "audio-duplex");
  const [presets, voice, ttsVoice] = ["presets", "voice", "tts-voice"].map(part);
  const prompt = mountPromptSetup(
    { presets, prompt: byId("system-prompt", HTMLTextAreaElement), voice, ttsVoice },
    { mode, defaults: page.defaults, onSettings: (settings) => store.applyPreset(settings), onEdit: () => drawer.open() },
  );
  return { prompt, modelName: mountModelNote(part("model-note"), page).modelName };
}

/** @typedef {{presets: HTMLElement, prompt: HTMLTextAreaElement, voice: HTMLElement, ttsVoice: HTMLElement}} PromptParts */

/**
 * @typedef {Object} PromptOptions
 * @property {"audio_duplex" | "omni"} mode
 * @property {{limits?: Record<string, number>} | null} defaults
 * @property {(settings: Record<string, unknown>) => void} onSettings a preset was chosen that sets these
 * @property {() => void} onEdit shows the editors
 */

/** @param {PromptParts} parts @param {PromptOptions} options */
function mountPromptSetup(parts, { mode, defaults, onSettings, onEdit }) {
  const voices = mountVoices(parts, { limits: voiceLimits(defaults), onEdited: () => presets.setEdited(true) });
  /** @param {AppliedPreset} preset */
  const apply = (preset) => {
    parts.prompt.value = preset.systemPrompt;
    voices.set(preset.voice);
    if (preset.isChosen) onSettings(preset.settings);
  };
  const presets = mountPresetSelector(parts.presets, { mode, page: mode, onApply: apply, onEdit });
  parts.prompt.addEventListener("input", () => presets.setEdited(true));

  return {
    ready: presets.ready,
    loadEditors: voices.loadEditors,
    /** @returns {{systemPrompt: string, prepare: {ref_audio_base64?: string, tts_ref_audio_base64?: string}}} */
    given() {
      const { heard, spoken } = voices;
      return {
        systemPrompt: parts.prompt.value.trim(),
        prepare: {
          ...(heard && { ref_audio_base64: voiceToWire(heard) }),
          ...(spoken && { tts_ref_audio_base64: voiceToWire(spoken) }),
        },
      };
    },
  };
}

/**
 * What a preset gave holds without the editors.
 * @param {Pick<PromptParts, "voice" | "ttsVoice">} parts
 * @param {{limits: VoiceLimits, onEdited: () => void}} options
 */
function mountVoices(parts, { limits, onEdited }) {
  /** The preset's, or the server's own. @type {Voice | null} */
  let given = null;
  let isApplying = false;
  /** @type {{heard: RefAudioPlayer, spoken: TtsVoice} | null} */
  let editors = null;

  const apply = () => {
    if (!editors) return;
    isApplying = true;
    editors.spoken.set(null);
    if (given) editors.heard.set(given);
    void (given ? Promise.resolve() : editors.heard.reset()).finally(() => (isApplying = false));
  };
  /** Changes with each preset; what comes for an earlier one is dropped. */
  let request = 0;
  const takeServerVoice = async () => {
    const own = request;
    // A server that gives none speaks with its own all the same; the editor says what is wrong.
    const voice = await loadServerVoices()
      .then(({ loadDefaultVoice }) => loadDefaultVoice())
      .catch(() => null);
    if (own === request) given = voice;
  };
  return {
    get heard() {
      return editors ? editors.heard.voice : given;
    },
    get spoken() {
      return editors?.spoken.voice ?? null;
    },
    /** @param {Voice | null} voice null: the server's own */
    set(voice) {
      request += 1;
      given = voice;
      if (!voice && !editors) void takeServerVoice();
      apply();
    },
    loadEditors: late(importEditors, ({ mountRefAudioPlayer, mountTtsVoice }) => {
      editors = {
        heard: mountRefAudioPlayer(parts.voice, { limits, onChange: () => isApplying || onEdited() }),
        spoken: mountTtsVoice(parts.ttsVoice, { limits, onChange: onEdited }),
      };
      apply();
    }),
  };
}

// The settings of `DuplexConfig` as a form.

/** The form's order; the length penalty stands among the everyday settings of a page. */
const SHOWN = /** @type {DuplexSetting[]} */ (Object.keys(DUPLEX_FIELDS)).filter((name) => name !== "length_penalty");

/** Builds the inputs; `bindSettings` on a root around them ties them to the store. @param {HTMLElement} el */
function mountDuplexConfigForm(el) {
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

// Brings the neural voice detector into a call when the visitor wants it; without it the loudness gate decides alone.

const loadGate = late(async () => {
  const [gate, { loadOnnxRuntime }] = await Promise.all([import("../lib/silero-gate.js"), import("../../shared/vendor.js")]);
  return () => gate.loadSileroDetector(loadOnnxRuntime);
});

/** @param {DuplexCall} call @returns {{update: (isWanted: boolean) => Promise<void>}} */
export function mountVoiceGate(call) {
  /** @type {Promise<SileroDetector> | null} */
  let loading = null;
  let isOn = false;
  return {
    async update(isWanted) {
      if (isWanted === isOn) return;
      isOn = isWanted;
      if (!isWanted) return call.kind.setDetector(null);
      try {
        loading ??= loadGate().then((load) => load());
        const detector = await loading;
        if (isOn) call.kind.setDetector(detector);
      } catch (error) {
        loading = null;
        isOn = false;
        toastProblem(/** @type {{code?: string}} */ (error));
      }
    },
  };
}
