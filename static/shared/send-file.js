// @ts-check
/**
 * Sends one file as a form does, telling how far it is. Device.
 */

import { ApiError } from "./api.js";

const HTTP_OK = 200;
const HTTP_REDIRECT = 300;

/**
 * @typedef {Object} SendFileOptions
 * @property {(done: {sentBytes: number, totalBytes: number}) => void} [onProgress]
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal] ends it; the promise is then refused with an AbortError
 */

/**
 * Sends a file as the part `file` of a form.
 *
 * @param {string} path
 * @param {Blob} blob its `type` says what it is
 * @param {string} fileName
 * @param {SendFileOptions} [options]
 * @returns {Promise<void>}
 */
export function sendFile(path, blob, fileName, { onProgress, signal, headers = {} } = {}) {
  const form = new FormData();
  form.append("file", blob, fileName);
  return new Promise((resolve, reject) => {
    const aborted = () => new DOMException("The upload was cancelled.", "AbortError");
    if (signal?.aborted) return reject(aborted());
    const request = new XMLHttpRequest(); // fetch does not tell how much was sent
    request.open("POST", path);
    request.responseType = "json";
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => onProgress?.({ sentBytes: loaded, totalBytes: total }));
    request.addEventListener("load", () => {
      if (request.status >= HTTP_OK && request.status < HTTP_REDIRECT) return resolve();
      const { detail, code } = request.response ?? {};
      reject(new ApiError(typeof detail === "string" ? detail : "", code ?? "internal", request.status));
    });
    request.addEventListener("error", () => reject(new ApiError("The server was not reached.", "offline", 0)));
    request.addEventListener("abort", () => reject(aborted()));
    signal?.addEventListener("abort", () => request.abort(), { once: true });
    request.send(form);
  });
}
