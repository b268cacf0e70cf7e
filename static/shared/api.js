/** Calls the server's HTTP interface. Device. */

/** A failed request. `code` is the server's, or "offline" if the server could not be reached. */
export class ApiError extends Error {
  /** @param {string} message @param {string} code @param {number} status HTTP status; 0 if there was no response */
  constructor(message, code, status) {
    super(message);
    this.name = "ApiError";
    this.code = code;
    this.status = status;
  }
}

/**
 * @template {string} P
 * @typedef {P extends keyof Http.GetAnswers ? Http.GetAnswers[P] : any} AnswerOf `any`: where the path is put together
 */

/** @template {string} P @param {P} path @param {{signal?: AbortSignal, cache?: RequestCache}} [options] @returns {Promise<AnswerOf<P>>} */
export const getJson = (path, options = {}) => call(path, { headers: { Accept: "application/json" }, ...options });

/**
 * @template T
 * @param {"POST" | "PUT" | "DELETE" | "PATCH"} method
 * @param {string} path
 * @param {unknown} [body] sent as JSON
 * @param {{signal?: AbortSignal, headers?: Record<string, string>}} [options]
 */
export function sendJson(method, path, body, { signal, headers = {} } = {}) {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const all = text === undefined ? headers : { "Content-Type": "application/json", ...headers };
  return call(path, { method, headers: all, body: text, signal });
}

/** @template T @param {string} path @param {RequestInit} request @returns {Promise<T>} */
async function call(path, request) {
  const answer = await fetch(path, request).catch((error) => {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server was not reached.", "offline", 0);
  });
  const body = await answer.json().catch(() => null);
  if (answer.ok) return body;
  throw new ApiError(detailOf(body) || answer.statusText, body?.code ?? "internal", answer.status);
}

function detailOf(/** @type {{detail?: string | {msg?: string}[]} | null} */ body) {
  const detail = body?.detail;
  if (Array.isArray(detail)) return detail.map((one) => one.msg).join("; ");
  return detail ?? "";
}

/** @param {string} recordingId @param {string} [what] of it @returns {string} path of a recording */
export const recordingPath = (recordingId, what) =>
  ["/api/sessions", encodeURIComponent(recordingId), what].filter(Boolean).join("/");
