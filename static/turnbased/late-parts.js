// @ts-check
/**
 * The choice of voice and microphone, loaded when the settings are first opened.
 */

import { byId, on } from "../shared/dom.js";
import { late } from "../shared/late.js";
import { toastProblem } from "../shared/toast.js";

/** @typedef {import("../shared/voice.js").Voice} Voice */

const importChoices = () =>
  Promise.all([import("../shared/audio-device-selector.js"), import("../duplex/ui/tts-ref-controller.js")]);

/**
 * Voice and microphone come when the settings are first opened; until then what was chosen before holds.
 *
 * @param {{limits: import("../shared/voice.js").VoiceLimits, prefix: string, storage: Pick<Storage, "getItem">}} options
 */
export function mountLateSound({ limits, prefix, storage }) {
  /** @type {import("../shared/audio-device-selector.js").DeviceSelector | null} */
  let devices = null;
  /** @type {import("../duplex/ui/tts-ref-controller.js").TtsVoice | null} */
  let ttsVoice = null;
  const load = late(importChoices, ([{ mountAudioDeviceSelector }, { mountTtsVoice }]) => {
    devices = mountAudioDeviceSelector(byId("devices", HTMLElement), { prefix, kinds: ["mic"] });
    ttsVoice = mountTtsVoice(byId("tts-voice", HTMLElement), { limits });
  });
  on(byId("open-settings", HTMLButtonElement), "click", () => load().catch(toastProblem));
  return {
    /** The visitor's own sample; null: the one of the instructions. @returns {Voice | null} */
    get voice() {
      return ttsVoice?.voice ?? null;
    },
    /** @returns {string} "" is the system's own choice */
    get microphoneId() {
      return devices?.micId ?? storage.getItem(`${prefix}_mic`) ?? "";
    },
  };
}
