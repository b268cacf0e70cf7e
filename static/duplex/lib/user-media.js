// @ts-check
/** Opens microphone or camera, or says by a code why it cannot. Device. */

import { CodedError } from "../../shared/coded-error.js";

/**
 * @param {MediaStreamConstraints} constraints
 * @param {string} missing the code where there is no such device
 * @throws {CodedError} `insecure_context`, `permission_denied`, `busy`, `unsupported` or `missing`
 */
export async function openUserMedia(constraints, missing) {
  if (globalThis.isSecureContext === false) throw new CodedError("insecure_context");
  const devices = globalThis.navigator?.mediaDevices;
  if (devices?.getUserMedia === undefined) throw new CodedError("unsupported");
  try {
    return await devices.getUserMedia(constraints);
  } catch (error) {
    throw new CodedError(deviceCode(error, missing), error);
  }
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
