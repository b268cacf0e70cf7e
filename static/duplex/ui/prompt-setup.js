// @ts-check
/**
 * What the model is told before a live call, and its voices: preset, instructions, voice samples.
 */

import { mountPresetSelector } from "../../shared/preset-selector.js";
import { mountRefAudioPlayer } from "../../shared/ref-audio-player.js";
import { voiceLimits, voiceToWire } from "../../shared/voice.js";
import { mountTtsVoice } from "./tts-ref-controller.js";

/** @typedef {import("../../shared/presets.js").AppliedPreset} AppliedPreset */

/**
 * @typedef {Object} PromptParts
 * @property {HTMLElement} presets
 * @property {HTMLTextAreaElement} prompt
 * @property {HTMLElement} voice
 * @property {HTMLElement} ttsVoice
 */

/**
 * @typedef {Object} PromptOptions
 * @property {"audio_duplex" | "omni"} mode
 * @property {{limits?: Record<string, number>} | null} defaults
 * @property {(settings: Record<string, unknown>) => void} onSettings a preset was chosen that sets these
 * @property {() => void} onEdit shows the editors
 */

/**
 * @param {PromptParts} parts
 * @param {PromptOptions} options
 */
export function mountPromptSetup(parts, { mode, defaults, onSettings, onEdit }) {
  const limits = voiceLimits(defaults);
  let isApplying = false;
  const voice = mountRefAudioPlayer(parts.voice, {
    limits,
    onChange: () => {
      if (!isApplying) presets.setEdited(true);
    },
  });
  const ttsVoice = mountTtsVoice(parts.ttsVoice, { limits, onChange: () => presets.setEdited(true) });
  /** @param {AppliedPreset} preset */
  const apply = (preset) => {
    parts.prompt.value = preset.systemPrompt;
    isApplying = true;
    if (preset.voice) voice.set(preset.voice);
    void (preset.voice ? Promise.resolve() : voice.reset()).finally(() => (isApplying = false));
    ttsVoice.set(null);
    if (preset.isChosen) onSettings(preset.settings);
  };
  const presets = mountPresetSelector(parts.presets, { mode, page: mode, onApply: apply, onEdit });
  parts.prompt.addEventListener("input", () => presets.setEdited(true));

  return {
    /** The first preset was applied, or there is none. */
    ready: presets.ready,
    /** @returns {{systemPrompt: string, prepare: {ref_audio_base64?: string, tts_ref_audio_base64?: string}}} */
    given() {
      const heard = voice.voice;
      const spoken = ttsVoice.voice;
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
