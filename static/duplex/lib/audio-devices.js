// @ts-check
/**
 * The microphones, loudspeakers and cameras of this machine, kept up to date. Device.
 * Names are empty until the user has allowed a device once: `hasNames` says so.
 */

/**
 * @typedef {Object} Device
 * @property {string} id
 * @property {string} name as the system calls it; "" when hidden
 */

/**
 * @typedef {Object} DeviceList
 * @property {Device[]} microphones
 * @property {Device[]} speakers empty where the browser cannot choose one
 * @property {Device[]} cameras
 * @property {boolean} hasNames
 */

/** @type {DeviceList} */
const NO_DEVICES = { microphones: [], speakers: [], cameras: [], hasNames: false };

/**
 * List what is plugged in now.
 * @param {MediaDevices | undefined} [devices]
 * @returns {Promise<DeviceList>} empty where the browser has no devices, as on an insecure page
 */
export async function listDevices(devices = globalThis.navigator?.mediaDevices) {
  if (devices?.enumerateDevices === undefined) return NO_DEVICES;
  const all = await devices.enumerateDevices();
  /** @param {MediaDeviceKind} kind @returns {Device[]} */
  const ofKind = (kind) =>
    all
      .filter((device) => device.kind === kind && device.deviceId !== "")
      .map(({ deviceId, label }) => ({ id: deviceId, name: label }));
  return {
    microphones: ofKind("audioinput"),
    speakers: ofKind("audiooutput"),
    cameras: ofKind("videoinput"),
    hasNames: all.some(({ label }) => label !== ""),
  };
}

/**
 * Tell the list now and after each change.
 * @param {(list: DeviceList) => void} onList
 * @param {MediaDevices | undefined} [devices]
 * @returns {{refresh: () => Promise<void>, close: () => void}} refresh after a permission was given
 */
export function watchDevices(onList, devices = globalThis.navigator?.mediaDevices) {
  let isClosed = false;
  const refresh = async () => {
    const list = await listDevices(devices);
    if (!isClosed) onList(list);
  };
  devices?.addEventListener?.("devicechange", refresh);
  refresh();
  return {
    refresh,
    close() {
      isClosed = true;
      devices?.removeEventListener?.("devicechange", refresh);
    },
  };
}
