// @ts-check
/** The voice to speak with: the one above, or an own sample. */

import { t } from "../../shared/i18n.js";
import { html, live, mountView } from "../../shared/lit.js";
import { mountRefAudioPlayer } from "../../shared/ref-audio-player.js";

/** @typedef {import("../../shared/voice.js").Voice} Voice */

let lastId = 0;

/**
 * @typedef {{readonly voice: Voice | null, set: (voice: Voice | null) => void}} TtsVoice
 *   `voice` is null while the voice above is used
 */

/**
 * @param {HTMLElement} el
 * @param {{limits: import("../../shared/voice.js").VoiceLimits, onChange?: (voice: Voice | null) => void}} options
 * @returns {TtsVoice}
 */
export function mountTtsVoice(el, { limits, onChange }) {
  const name = `tts-voice-${++lastId}`;
  let isOwn = false;
  const box = document.createElement("div");
  const player = mountRefAudioPlayer(box, { limits, label: () => t("voice.tts_own"), onChange: (voice) => onChange?.(voice) });
  const current = () => (isOwn ? player.voice : null);
  /** @param {boolean} next */
  const become = (next) => {
    isOwn = next;
    draw();
  };
  /** @param {string} value @param {string} words @param {boolean} isChosen */
  const choice = (value, words, isChosen) =>
    html`<label class="check"
      ><input
        type="radio"
        name=${name}
        value=${value}
        .checked=${live(isChosen)}
        @change=${() => (become(value === "own"), onChange?.(current()))}
      /><span>${words}</span></label
    >`;
  const draw = mountView(el, () => {
    box.hidden = !isOwn;
    return html`<fieldset class="stack-tight">
      <legend>${t("voice.tts_label")}</legend>
      ${choice("same", t("voice.tts_same"), !isOwn)}${choice("own", t("voice.tts_own"), isOwn)}${box}
    </fieldset>`;
  });
  return {
    get voice() {
      return current();
    },
    set(voice) {
      player.set(voice);
      become(voice !== null);
    },
  };
}
