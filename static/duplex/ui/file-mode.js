// @ts-check
/**
 * A video file as the source of a call: choosing it, its mixer, playing it. Loaded when first wanted.
 */

import { bindSettings } from "../../shared/settings-form.js";
import { on } from "../../shared/dom.js";
import { openVideoSource, setMixer } from "../lib/video-file-source.js";
import { mountFilePanel } from "./file-panel.js";
import { mountMixerPanel } from "./mixer-panel.js";
import { mixSettingsOf } from "./omni-settings.js";

/**
 * @typedef {Object} FileModeParts
 * @property {HTMLElement} panel
 * @property {HTMLDetailsElement} mixer
 * @property {HTMLProgressElement} progress
 * @property {HTMLVideoElement} video
 */

/**
 * @typedef {Object} FileModeOptions
 * @property {import("./omni-settings.js").OmniStore} store
 * @property {(url: string | null) => void} onFile another file is shown, or none
 * @property {() => import("../lib/microphone.js").MicrophoneOptions} microphone
 */

/**
 * @param {FileModeParts} parts
 * @param {FileModeOptions} options
 */
export function mountFileMode({ panel, mixer: mixerPanel, progress, video }, { store, onFile, microphone }) {
  /** @type {import("../lib/file-source.js").FileSource | null} */
  let playing = null;
  const files = mountFilePanel(panel, {
    store,
    video,
    mixer: mixerPanel,
    progress,
    onFile: (file) => (onFile(file?.url ?? null), mixer.update()),
  });
  const mixer = mountMixerPanel(mixerPanel, {
    store,
    file: () => files.file(),
    microphone,
    callLevels: () => playing?.mixer.levels ?? null,
  });
  for (const root of [panel, mixerPanel]) bindSettings(root, store);
  const mix = () => mixSettingsOf(store, mixer.microphoneLufs(), "file_volume");
  on(store, "change", () => {
    if (playing) setMixer(playing.mixer, mix());
  });
  return {
    get hasFile() {
      return files.file() !== null;
    },
    askForFile: files.askForFile,
    /** Show the file where the camera was. */
    show: files.show,
    /** @returns {Promise<import("../lib/call-types.js").LiveSource>} */
    async open() {
      const file = files.file();
      if (!file) throw new Error("no file was chosen");
      await mixer.close();
      playing = await openVideoSource({
        sound: file.sound,
        video,
        mix: mix(),
        microphone: microphone(),
        paddingBeforeS: store.get("pad_before_s"),
        paddingAfterS: store.get("pad_after_s"),
      });
      files.follow(playing);
      mixer.update();
      return playing;
    },
    /** The call is over. */
    release() {
      playing = null;
      files.follow(null);
      mixer.update();
    },
  };
}
