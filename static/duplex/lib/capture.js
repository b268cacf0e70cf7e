/**
 * One capture worklet behind a node: chunks of 16 kHz mono and levels, as callbacks.
 * Used by the microphone, file sources and recorders. Device.
 */
import { PROCESSOR_NAME } from "./capture-format.js";

/** @import { Capture, CaptureListeners } from "../../../types/devices.js" */

const PROCESSOR_URL = "/static/duplex/lib/capture-processor.js";

/** @type {WeakMap<BaseAudioContext, Promise<void>>} */ const loadedModules = new WeakMap();

/** Loads the worklet into a context, once. @param {BaseAudioContext} context @returns {Promise<void>} */
function loadProcessor(context) {
  const loading = loadedModules.get(context) ?? context.audioWorklet.addModule(PROCESSOR_URL);
  loadedModules.set(context, loading);
  return loading;
}

/**
 * @param {BaseAudioContext} context
 * @param {number} chunkSamples
 * @param {CaptureListeners} listeners
 * @returns {Promise<Capture>}
 */
export async function createCapture(context, chunkSamples, listeners) {
  await loadProcessor(context);
  const node = new AudioWorkletNode(context, PROCESSOR_NAME, {
    numberOfInputs: 1,
    numberOfOutputs: 0,
    processorOptions: { chunkSize: chunkSamples, waitsForStart: true },
  });
  /** @type {(() => void) | null} */ let resolveStop = null;
  const finishStop = () => {
    resolveStop?.();
    resolveStop = null;
  };
  node.port.onmessage = ({ data: message }) => {
    if (message.type === "feature") listeners.onFeature?.(message);
    else if (message.type === "level") listeners.onLevel?.(message);
    else if (message.type === "window") listeners.onWindow?.(message.audio);
    else if (message.type === "chunk") listeners.onChunk?.(message);
    else if (message.type === "stopped") finishStop();
  };
  let isRunning = false;
  return {
    node,
    start() {
      isRunning = true;
      node.port.postMessage({ type: "start" });
    },
    stop() {
      // The port of a suspended context still answers; that of a closed one does not.
      if (!isRunning || context.state === "closed") return Promise.resolve();
      isRunning = false;
      return new Promise((resolve) => {
        resolveStop = resolve;
        node.port.postMessage({ type: "stop" });
      });
    },
    setFeatures: (isOn) => node.port.postMessage({ type: "features", isOn }),
    setWindows: (isOn) => node.port.postMessage({ type: "windows", isOn }),
    recycle: (audio) =>
      node.port.postMessage({ type: "recycle", buffer: audio.buffer }, [/** @type {ArrayBuffer} */ (audio.buffer)]),
    close() {
      node.port.postMessage({ type: "close" });
      node.port.onmessage = null;
      node.disconnect();
      finishStop();
    },
  };
}
