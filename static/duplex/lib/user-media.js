/** Opens microphone or camera, with typed errors. Device. */

import { CodedError } from "../../shared/texts.js";

/**
 * @param {MediaStreamConstraints} constraints
 * @param {string} missing code if there is no such device
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

/** Code of a `getUserMedia` error. @param {unknown} error @param {string} missing code if there is no such device */
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
