// @ts-check
/** The settings of the chat page: a drawer at the side; voice and microphone come when it is first opened. */

import { byId, on } from "../shared/dom.js";
import { late } from "../shared/late.js";
import { toastProblem } from "../shared/notice.js";
import { bindSettings } from "../shared/settings-form.js";

/** @param {import("../shared/settings-store.js").SettingsStore<typeof import("./turn-options.js").FIELDS>} settings */
export function mountChatSettings(settings) {
  const dialog = byId("settings", HTMLDialogElement);
  // Some switches stand beside the text box, so the whole page is bound.
  bindSettings(document.body, /** @type {import("../shared/settings-form.js").AnyStore} */ (/** @type {unknown} */ (settings)));
  on(byId("open-settings", HTMLButtonElement), "click", () => dialog.showModal());
  on(byId("reset-settings", HTMLButtonElement), "click", () => settings.reset());
  for (const shut of document.querySelectorAll("dialog [data-action=shut]")) {
    on(shut, "click", () => shut.closest("dialog")?.close());
  }
  // A click beside a drawer lands on the dialog itself.
  for (const one of document.querySelectorAll("dialog")) {
    on(one, "click", (event) => {
      if (event.target === one) one.close();
    });
  }
}

// The choice of voice and microphone, loaded when the settings are first opened.

/** @typedef {import("../shared/prompt.js").Voice} Voice */

const importChoices = () => Promise.all([import("../shared/audio-device-selector.js"), import("../shared/ref-audio-player.js")]);

/**
 * Voice and microphone come when the settings are first opened; until then what was chosen before holds.
 *
 * @param {{limits: import("../shared/prompt.js").VoiceLimits, prefix: string, storage: Pick<Storage, "getItem">}} options
 */
export function mountLateSound({ limits, prefix, storage }) {
  /** @type {import("../shared/audio-device-selector.js").DeviceSelector | null} */
  let devices = null;
  /** @type {import("../shared/ref-audio-player.js").TtsVoice | null} */
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
