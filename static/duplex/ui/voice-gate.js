// @ts-check
/**
 * Brings the neural voice detector into a call when the visitor wants it; without it the gate of sound
 * alone goes on.
 */

import { toast } from "../../shared/toast.js";
import { problemText } from "../../shared/problems.js";
import { loadOnnxRuntime } from "../../shared/vendor.js";

/**
 * @param {import("./live-call.js").LiveCall} call
 * @returns {{update: (isWanted: boolean) => Promise<void>}}
 */
export function mountVoiceGate(call) {
  /** @type {Promise<import("../lib/silero-gate.js").SileroDetector> | null} */
  let loading = null;
  let isOn = false;
  return {
    async update(isWanted) {
      if (isWanted === isOn) return;
      isOn = isWanted;
      if (!isWanted) return call.setDetector(null);
      try {
        loading ??= import("../lib/silero-gate.js").then((gate) => gate.loadSileroDetector(loadOnnxRuntime));
        const detector = await loading;
        if (isOn) call.setDetector(detector);
      } catch (error) {
        loading = null;
        isOn = false;
        const { title, nextStep } = problemText(/** @type {{code?: string}} */ (error));
        toast(`${title} ${nextStep}`);
      }
    },
  };
}
