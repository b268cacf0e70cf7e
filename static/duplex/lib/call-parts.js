/** Browser services of a call: lazily loaded parts, network, device changes, wake lock. Device. */

import { late } from "../../shared/async.js";
import { keepAwake, pageVisibility } from "../../shared/page-visibility.js";

/** @import { CallParts } from "./call.js" */
/** @import { MicrophoneOptions } from "../../../types/devices.js" */
/** @import { DuplexCall, HalfCall } from "./call-kinds.js" */
/** @import { DuplexSession } from "./duplex-session.js" */
/** @import { HalfDuplexSession } from "./half-duplex-session.js" */

/** Microphone and playback, loaded at the first call or earlier while the page is idle. */
const loadCallSound = late(
  () => Promise.all([import("./audio-player.js"), import("./barge-in.js"), import("./capture.js")]),
  ([player, bargeIn, capture]) => ({ ...player, ...bargeIn, ...capture }),
);
const openMicrophone = async (/** @type {MicrophoneOptions} */ options) => (await loadCallSound()).openMicrophone(options);
/** Sources that replace the microphone: audio files and spoken sentences. */
export const loadSoundFiles = late(() => import("./file-source.js"));
const loadNetwork = () => import("../../shared/network.js");
const loadDuplex = late(() => Promise.all([import("./duplex-session.js"), loadNetwork()]));
const loadHalfDuplex = late(() => Promise.all([import("./half-duplex-session.js"), loadNetwork()]));

/** Loads what the first call needs. */
export const loadCall = () => Promise.all([loadDuplex(), loadCallSound()]);
export const loadHalfCall = () => Promise.all([loadHalfDuplex(), loadCallSound()]);

/** @type {Omit<CallParts<any>, "openSession">} */ const PARTS = {
  openPlayer: async (options) => new (await loadCallSound()).AudioPlayer(options),
  openBargeIn: async (player) => new (await loadCallSound()).BargeIn(player),
  keepAwake,
  onDeviceChange: (listener) => navigator.mediaDevices?.addEventListener("devicechange", listener),
};

/** @param {"audio_duplex" | "omni"} appId @returns {CallParts<DuplexSession>} */
export const duplexParts = (appId) => ({
  ...PARTS,
  async openSession(options) {
    const [{ DuplexSession }, { networkOf }] = await loadDuplex();
    const idPrefix = appId === "omni" ? "omni" : "adx"; // selects the queue
    return new DuplexSession({ ...networkOf("duplex", appId), visibility: pageVisibility(), idPrefix, ...options });
  },
});

/** @type {CallParts<HalfDuplexSession>} */ export const HALF_PARTS = {
  ...PARTS,
  async openSession(options) {
    const [{ HalfDuplexSession }, { networkOf }] = await loadHalfDuplex();
    return new HalfDuplexSession({ ...networkOf("half_duplex", "half_duplex_audio"), visibility: pageVisibility(), ...options });
  },
};

// Suggestions that are spoken on the visitor's behalf.

/**
 * @param {DuplexCall | HalfCall} call
 * @param {Object} actions
 * @param {() => Promise<unknown>} actions.start
 * @param {(sentence: string) => void} [actions.type] sends it as text, where the mode takes text
 * @param {(sentence: string, lengthMs: number) => void} [actions.onSpoken]
 */
export function mountSuggestions(call, { start, type, onSpoken }) {
  /** Sentence with which the starting call begins. */
  let sentence = "";
  let lengthMs = 0; // 0: the server could not speak it
  call.on("prepared", () => {
    if (!sentence) return;
    if (lengthMs > 0) onSpoken?.(sentence, lengthMs);
    else type?.(sentence);
    sentence = "";
  });
  call.on("ended", () => (sentence = ""));
  return {
    say(/** @type {string} */ text) {
      if (call.isActive) return type?.(text);
      [sentence, lengthMs] = [text, 0];
      void start().finally(() => call.isActive || (sentence = ""));
    },
    /** Opens the microphone, after the sentence if the call begins with one. @param {MicrophoneOptions} options */
    async openMicrophone(options) {
      if (sentence) {
        const { openSentence, openSilence } = await loadSoundFiles();
        const source = await openSentence(sentence, options).catch(() => null);
        lengthMs = source?.lengthMs ?? 0;
        if (source) return source;
        if (type) return openMicrophone(options).catch(() => openSilence(options)); // what is typed needs no microphone
      }
      return openMicrophone(options);
    },
  };
}
