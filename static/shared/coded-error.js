// @ts-check
/** Errors that name their sentence. Pure. */

export class CodedError extends Error {
  /** @param {string} code of a text `problem.CODE` @param {unknown} [cause] what the browser said @param {string} [message] */
  constructor(code, cause, message = code) {
    super(message, { cause });
    this.code = code;
  }
}

/** @param {unknown} error @returns {string} what the browser said */
export function reasonOf(error) {
  return error instanceof Error && error.cause instanceof Error ? error.cause.message : "";
}

/** @param {unknown} error @param {string} [fallback] */
export function codeOf(error, fallback = "unsupported") {
  return error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : fallback;
}
