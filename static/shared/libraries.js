/** Loads the libraries that few pages need when they are needed. */

import { CodedError } from "./texts.js";

const BASE = "/static/vendor";

/** @param {string} library @throws {CodedError} "missing_library" */
async function load(library) {
  try {
    return await import(`${BASE}/${library}/index.js`);
  } catch (error) {
    console.info(`The library "${library}" was not loaded.`, error);
    throw new CodedError("missing_library", error, `The library "${library}" is not installed on the server.`);
  }
}

/** @returns {Promise<typeof import("uplot")>} */
export const loadUplot = async () => (await load("uplot")).default;
/** @returns {Promise<typeof import("marked").marked>} */
export const loadMarked = async () => (await load("marked")).marked;
/** @returns {Promise<typeof import("@msgpack/msgpack")>} */
export const loadMsgpack = () => load("msgpack");

/** ONNX Runtime and the address of the voice detector's model. */
export async function loadOnnxRuntime() {
  const ort = await load("onnxruntime");
  ort.env.wasm.wasmPaths = `${BASE}/onnxruntime/`;
  return { ort, modelUrl: `${BASE}/silero/silero_vad.onnx` };
}
