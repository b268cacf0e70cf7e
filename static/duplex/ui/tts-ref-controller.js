// @ts-check
/**
 * The voice to speak with: the one above, or an own sample.
 */

import { fill, h, on, setText } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { mountRefAudioPlayer } from "../../shared/ref-audio-player.js";

/** @typedef {import("../../shared/voice.js").Voice} Voice */

let lastId = 0;

/**
 * @typedef {{readonly voice: Voice | null, set: (voice: Voice | null) => void, close: () => void}} TtsVoice
 *   `voice` is null while the voice above is used
 */

/**
 * @param {HTMLElement} el
 * @param {{limits: import("../../shared/voice.js").VoiceLimits, onChange?: (voice: Voice | null) => void}} options
 * @returns {TtsVoice}
 */
export function mountTtsVoice(el, { limits, onChange }) {
  const name = `tts-voice-${++lastId}`;
  const same = h("input", { type: "radio", name, value: "same", checked: true });
  const own = h("input", { type: "radio", name, value: "own" });
  const sameText = h("span");
  const ownText = h("span");
  const legend = h("legend");
  const box = h("div", { hidden: true });
  fill(
    el,
    h(
      "fieldset",
      { class: "stack-tight" },
      legend,
      h("label", { class: "check" }, same, sameText),
      h("label", { class: "check" }, own, ownText),
      box,
    ),
  );
  const player = mountRefAudioPlayer(box, { limits, label: () => t("voice.tts_own"), onChange: (voice) => onChange?.(voice) });
  const draw = () => {
    setText(legend, t("voice.tts_label"));
    setText(sameText, t("voice.tts_same"));
    setText(ownText, t("voice.tts_own"));
    box.hidden = !own.checked;
  };
  const current = () => (own.checked ? player.voice : null);
  const choose = () => {
    draw();
    onChange?.(current());
  };
  const ends = [on(same, "change", choose), on(own, "change", choose), onLangChange(draw)];
  draw();
  return {
    get voice() {
      return current();
    },
    set(voice) {
      own.checked = voice !== null;
      same.checked = voice === null;
      player.set(voice);
      draw();
    },
    close() {
      player.close();
      ends.forEach((end) => end());
    },
  };
}
