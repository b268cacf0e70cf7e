// @ts-check
/** Finds out, without asking the visitor for anything, which devices the browser has and allows. Device. */

/** @import { BrowserFacts } from "./readiness.js" */

/** @returns {BrowserFacts} what is known at once */
export function firstFacts() {
  const unknown = /** @type {const} */ ({ permission: "unknown", count: null });
  return {
    isSecure: globalThis.isSecureContext !== false,
    isSupported: typeof navigator.mediaDevices?.getUserMedia === "function" && "AudioWorkletNode" in globalThis,
    microphone: unknown,
    camera: unknown,
  };
}

/** @param {"microphone" | "camera"} name @returns {Promise<PermissionStatus | null>} null where the browser does not tell */
async function permissionOf(name) {
  try {
    return await navigator.permissions.query({ name: /** @type {PermissionName} */ (name) });
  } catch {
    return null;
  }
}

/**
 * Watches devices and permissions.
 * @param {(facts: BrowserFacts) => void} listener called at once and with every change
 * @returns {Promise<() => void>} ends it
 */
export async function watchDevices(listener) {
  const first = firstFacts();
  listener(first);
  const { mediaDevices } = navigator;
  if (!first.isSecure || !first.isSupported) return () => {};
  const [microphone, camera] = await Promise.all([permissionOf("microphone"), permissionOf("camera")]);
  const look = async () => {
    const devices = await mediaDevices.enumerateDevices().catch(() => []);
    const count = (/** @type {MediaDeviceKind} */ kind) => devices.filter((device) => device.kind === kind).length;
    listener({
      ...first,
      microphone: { permission: microphone?.state ?? "unknown", count: count("audioinput") },
      camera: { permission: camera?.state ?? "unknown", count: count("videoinput") },
    });
  };
  const change = () => void look();
  /** @type {[EventTarget | null, string][]} */
  const sources = [
    [mediaDevices, "devicechange"],
    [microphone, "change"],
    [camera, "change"],
  ];
  for (const [source, event] of sources) source?.addEventListener(event, change);
  await look();
  return () => {
    for (const [source, event] of sources) source?.removeEventListener(event, change);
  };
}
