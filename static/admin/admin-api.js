// @ts-check
/**
 * Calls the server as an administrator and notices when it no longer takes us for one. Device.
 */

import { ApiError, getJson, sendJson } from "../shared/api.js";

const UNAUTHORIZED = 401;
const FORBIDDEN = 403;

/**
 * @typedef {Object} AdminApi
 * @property {<P extends string>(path: P) => Promise<import("../shared/api.js").AnswerOf<P>>} get
 * @property {<T>(method: "POST" | "PUT" | "DELETE", path: string, body?: unknown) => Promise<T>} send
 */

/**
 * @param {() => void} onRefused called when the server wants a token
 * @returns {AdminApi}
 */
export function adminApi(onRefused) {
  /** @template T @param {Promise<T>} answer @returns {Promise<T>} */
  const watched = async (answer) => {
    try {
      return await answer;
    } catch (error) {
      if (isRefusal(error)) onRefused();
      throw error;
    }
  };
  return { get: (path) => watched(getJson(path)), send: (method, path, body) => watched(sendJson(method, path, body)) };
}

/** @param {unknown} error */
export function isRefusal(error) {
  return error instanceof ApiError && (error.status === UNAUTHORIZED || error.status === FORBIDDEN);
}
