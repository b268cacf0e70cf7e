// @ts-check
/**
 * One capture worklet behind a node: chunks of 16 kHz mono and levels, as callbacks.
 * Used by the microphone, by file sources and by recorders. Device.
 */
import { PROCESSOR_NAME } from "./capture-format.js";

/** @import { SpeechFrame } from "./speech-features.js" */

const PROCESSOR_URL = "/static/duplex/lib/capture-processor.js";

/** @type {WeakMap<BaseAudioContext, Promise<void>>} */
const loadedModules = new WeakMap();

/**
 * @typedef {Object} CaptureChunk
 * @property {Float32Array} audio 16 kHz mono
 * @property {number} startSample place in the stream since start, samples
 * @property {number} endTimeS context time at its end, seconds
 * @property {number} droppedSamples lost so far
 */

/**
 * @typedef {Object} CaptureLevel
 * @property {number} rms
 * @property {number} peak
 * @property {boolean} isSilent every sample was exactly zero
 */

/**
 * @typedef {Object} CaptureListeners
 * @property {(chunk: CaptureChunk) => void} [onChunk]
 * @property {(level: CaptureLevel) => void} [onLevel]
 * @property {(frame: SpeechFrame) => void} [onFeature]
 * @property {(audio: Float32Array) => void} [onWindow] 512 samples
 */

/**
 * @typedef {Object} Capture
 * @property {AudioWorkletNode} node connect sources to it
 * @property {() => void} start begin to deliver chunks
 * @property {() => Promise<void>} stop ends when the rest has been delivered
 * @property {(isOn: boolean) => void} setFeatures deliver 10 ms frames for the speech gate
 * @property {(isOn: boolean) => void} setWindows deliver 512-sample windows for a voice detector
 * @property {(audio: Float32Array) => void} recycle give a chunk's memory back; do not use it after
 * @property {() => void} close
 */

/** Load the worklet into a context, once. @param {BaseAudioContext} context @returns {Promise<void>} */
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
  /** @type {(() => void) | null} */
  let resolveStop = null;
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
      // A suspended context still answers its port; a closed one never does.
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
