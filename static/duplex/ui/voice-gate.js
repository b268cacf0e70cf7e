// @ts-check
/** Brings the neural voice detector into a call when the visitor wants it; without it the gate of sound alone goes on. */

import { late } from "../../shared/late.js";
import { toastProblem } from "../../shared/notice.js";

/** @import { DuplexCall } from "../lib/duplex-call.js" */
/** @import { SileroDetector } from "../lib/silero-gate.js" */

const loadGate = late(async () => {
  const [gate, { loadOnnxRuntime }] = await Promise.all([import("../lib/silero-gate.js"), import("../../shared/vendor.js")]);
  return () => gate.loadSileroDetector(loadOnnxRuntime);
});

/** @param {DuplexCall} call @returns {{update: (isWanted: boolean) => Promise<void>}} */
export function mountVoiceGate(call) {
  /** @type {Promise<SileroDetector> | null} */
  let loading = null;
  let isOn = false;
  return {
    async update(isWanted) {
      if (isWanted === isOn) return;
      isOn = isWanted;
      if (!isWanted) return call.setDetector(null);
      try {
        loading ??= loadGate().then((load) => load());
        const detector = await loading;
        if (isOn) call.setDetector(detector);
      } catch (error) {
        loading = null;
        isOn = false;
        toastProblem(/** @type {{code?: string}} */ (error));
      }
    },
  };
}
