// @ts-check
/**
 * The user's sound as one stream that outlives a change of microphone, and is silent while muted. Device.
 */

import { streamOf } from "./session-video-recorder.js";

/**
 * @typedef {Object} UserBus
 * @property {MediaStream} stream
 * @property {(node: AudioNode | null | undefined) => void} connect in the place of what was connected before
 * @property {(isMuted: boolean) => void} setMuted
 * @property {() => Promise<void>} close
 */

/** @returns {UserBus} */
export function createUserBus() {
  const context = new AudioContext();
  const output = context.createMediaStreamDestination();
  const gate = new GainNode(context);
  gate.connect(output);
  context.resume().catch(() => undefined); // the next gesture lets it run
  let disconnect = () => {};
  return {
    stream: output.stream,
    connect(node) {
      disconnect();
      disconnect = () => {};
      if (!node) return;
      const tap = streamOf(node);
      const input = context.createMediaStreamSource(tap.stream);
      input.connect(gate);
      disconnect = () => {
        input.disconnect();
        if (node.context.state !== "closed") tap.close();
      };
    },
    setMuted: (isMuted) => gate.gain.setTargetAtTime(isMuted ? 0 : 1, context.currentTime, 0.01),
    async close() {
      disconnect();
      if (context.state !== "closed") await context.close();
    },
  };
}
