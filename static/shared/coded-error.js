// @ts-check
/** Errors that name their sentence. Pure. */

export class CodedError extends Error {
  /** @param {string} code of a text `problem.CODE` @param {unknown} [cause] what the browser said @param {string} [message] */
  constructor(code, cause, message = code) {
    super(message, { cause });
    this.code = code;
  }
}

/** @param {unknown} error @param {string} [fallback] */
export function codeOf(error, fallback = "unsupported") {
  return error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : fallback;
}

/** Why `getUserMedia` refused. @param {unknown} error @param {string} missing the code where there is no such device */
export function deviceCode(error, missing) {
  switch (error instanceof Error || error instanceof DOMException ? error.name : "") {
    case "NotAllowedError":
    case "SecurityError":
      return "permission_denied";
    case "NotFoundError":
    case "OverconstrainedError":
      return missing;
    case "NotReadableError":
    case "AbortError":
      return "busy";
    default:
      return "unsupported";
  }
}
