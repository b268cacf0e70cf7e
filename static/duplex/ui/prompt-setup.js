// @ts-check
/** Instructions of a live call and its voices: preset, instructions, voice samples. */

import { mountPresetSelector } from "../../shared/preset-selector.js";
import { late } from "../../shared/late.js";
import { voiceLimits, voiceToWire } from "../../shared/prompt.js";

/** @import { AppliedPreset, Voice, VoiceLimits } from "../../shared/prompt.js" */
/** @import { RefAudioPlayer, TtsVoice } from "../../shared/ref-audio-player.js" */

const loadServerVoices = late(() => import("../../shared/decode-sound.js"));
const importEditors = () => Promise.all([import("../../shared/ref-audio-player.js"), import("../../shared/ref-audio-player.js")]);

/** @typedef {{presets: HTMLElement, prompt: HTMLTextAreaElement, voice: HTMLElement, ttsVoice: HTMLElement}} PromptParts */

/**
 * @typedef {Object} PromptOptions
 * @property {"audio_duplex" | "omni"} mode
 * @property {{limits?: Record<string, number>} | null} defaults
 * @property {(settings: Record<string, unknown>) => void} onSettings a preset was chosen that sets these
 * @property {() => void} onEdit shows the editors
 */

/** @param {PromptParts} parts @param {PromptOptions} options */
export function mountPromptSetup(parts, { mode, defaults, onSettings, onEdit }) {
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
    /** The first preset was applied, or there is none. */
    ready: presets.ready,
    /** Brings in the editors of the voices. */
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
 * The voice the model hears and the one it speaks with. Their editors come later; what a preset gave holds
 * without them.
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
  let wish = 0;
  const takeServerVoice = async () => {
    const mine = wish;
    // A server that gives none speaks with its own all the same; the editor says what is wrong.
    const voice = await loadServerVoices()
      .then(({ loadDefaultVoice }) => loadDefaultVoice())
      .catch(() => null);
    if (mine === wish) given = voice;
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
      wish += 1;
      given = voice;
      if (!voice && !editors) void takeServerVoice();
      apply();
    },
    loadEditors: late(importEditors, ([{ mountRefAudioPlayer }, { mountTtsVoice }]) => {
      editors = {
        heard: mountRefAudioPlayer(parts.voice, { limits, onChange: () => isApplying || onEdited() }),
        spoken: mountTtsVoice(parts.ttsVoice, { limits, onChange: onEdited }),
      };
      apply();
    }),
  };
}
