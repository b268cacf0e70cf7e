// @ts-check
/** What a call needs of the browser: parts that come late, the network, devices that change, a screen that stays on. Device. */

import { late } from "../../shared/late.js";
import { keepAwake, pageVisibility } from "../../shared/page-visibility.js";

/** @import { CallParts } from "./call.js" */
/** @import { DuplexSession } from "./duplex-session.js" */
/** @import { HalfDuplexSession } from "./half-duplex-session.js" */

/** Microphone and loudspeaker: they come when the first call begins, or earlier where a page has time. */
export const loadCallSound = late(async () => {
  const [{ AudioPlayer }, { BargeIn }, { openMicrophone }] = await Promise.all([
    import("./audio-player.js"),
    import("./barge-in.js"),
    import("./microphone.js"),
  ]);
  return { AudioPlayer, BargeIn, openMicrophone };
});
const loadNetwork = () => import("../../shared/network.js");
const loadDuplex = late(() => Promise.all([import("./duplex-session.js"), loadNetwork()]));
const loadHalfDuplex = late(() => Promise.all([import("./half-duplex-session.js"), loadNetwork()]));

/** What the first call needs to begin; a page may have it come earlier. */
export const loadCall = () => Promise.all([loadDuplex(), loadCallSound()]);
export const loadHalfCall = () => Promise.all([loadHalfDuplex(), loadCallSound()]);

/** @type {Omit<CallParts<any>, "openSession">} */
const PARTS = {
  openPlayer: async (options) => new (await loadCallSound()).AudioPlayer(options),
  openBargeIn: async (player) => new (await loadCallSound()).BargeIn(player),
  keepAwake,
  onDeviceChange(listener) {
    const { mediaDevices } = navigator;
    mediaDevices?.addEventListener("devicechange", listener);
    return () => mediaDevices?.removeEventListener("devicechange", listener);
  },
};

/** @param {"audio_duplex" | "omni"} appId @returns {CallParts<DuplexSession>} */
export const duplexParts = (appId) => ({
  ...PARTS,
  async openSession(options) {
    const [{ DuplexSession }, { networkOf }] = await loadDuplex();
    const idPrefix = appId === "omni" ? "omni" : "adx"; // chooses the queue
    return new DuplexSession({ ...networkOf("duplex", appId), visibility: pageVisibility(), idPrefix, ...options });
  },
});

/** @type {CallParts<HalfDuplexSession>} */
export const HALF_PARTS = {
  ...PARTS,
  async openSession(options) {
    const [{ HalfDuplexSession }, { networkOf }] = await loadHalfDuplex();
    return new HalfDuplexSession({ ...networkOf("half_duplex", "half_duplex_audio"), visibility: pageVisibility(), ...options });
  },
};
