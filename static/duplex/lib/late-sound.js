// @ts-check
/**
 * Microphone and loudspeaker of a call: they come when the first one begins. Device.
 */

import { late } from "../../shared/late.js";

export const loadCallSound = late(async () => {
  const [{ AudioPlayer }, { BargeIn }, { openMicrophone }] = await Promise.all([
    import("./audio-player.js"),
    import("./barge-in.js"),
    import("./microphone.js"),
  ]);
  return { AudioPlayer, BargeIn, openMicrophone };
});
