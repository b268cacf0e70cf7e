/** Selects microphone, speaker and camera, remembers the choice, and follows devices being plugged in and out. */

import { html, iconButton, live, mountView, nothing, on } from "./lit.js";
import { t } from "./texts.js";
import { remember, remembered } from "./memory.js";

/** @typedef {"mic" | "speaker" | "camera"} DeviceKind */

/** @type {Record<DeviceKind, MediaDeviceKind>} */
const MEDIA_KINDS = { mic: "audioinput", speaker: "audiooutput", camera: "videoinput" };
const ALIASES = ["default", "communications"]; // device ids that browsers use for the system default; here it is the empty string

/**
 * @typedef {Object} DeviceSelectorOptions
 * @property {string} prefix of the storage keys: `<prefix>_mic`, `<prefix>_speaker`, `<prefix>_camera`
 * @property {readonly DeviceKind[]} [kinds]
 * @property {(kind: DeviceKind, deviceId: string) => void} [onChange] "" is the system default
 *
 * @typedef {ReturnType<typeof mountAudioDeviceSelector>} DeviceSelector
 */

/** @returns {boolean} whether this browser lets a page choose the speaker */
function canChooseSpeaker() {
  return "setSinkId" in (globalThis.AudioContext?.prototype ?? {}) || "setSinkId" in HTMLMediaElement.prototype;
}

/** @returns {Promise<MediaDeviceInfo[]>} empty where the browser lists none */
async function listDevices() {
  const devices = (await navigator.mediaDevices?.enumerateDevices?.().catch(() => [])) ?? [];
  return devices.filter(({ deviceId }) => !ALIASES.includes(deviceId));
}

let lastId = 0;

/** @param {HTMLElement} el @param {DeviceSelectorOptions} options */
export function mountAudioDeviceSelector(el, { prefix, kinds = ["mic", "speaker"], onChange }) {
  const own = ++lastId;
  /** @type {Partial<Record<DeviceKind, string>>} */
  const wished = Object.fromEntries(kinds.map((kind) => [kind, remembered(`${prefix}_${kind}`) ?? ""]));
  /** @type {MediaDeviceInfo[]} */ let known = [];
  const refresh = async () => {
    known = await listDevices();
    draw();
  };
  const choose = (/** @type {DeviceKind} */ kind, /** @type {string} */ deviceId) => {
    wished[kind] = deviceId;
    remember(`${prefix}_${kind}`, deviceId);
    draw();
    onChange?.(kind, deviceId);
  };
  /** @param {DeviceKind} kind */
  const named = (kind) => known.filter((device) => device.kind === MEDIA_KINDS[kind] && device.deviceId);
  /** Until permission is granted the browser hides device ids, so a remembered id is kept. @param {DeviceKind} kind */
  const idOf = (kind) => {
    const [devices, wish] = [named(kind), wished[kind] ?? ""];
    return devices.length === 0 || devices.some(({ deviceId }) => deviceId === wish) ? wish : "";
  };
  const chooser = (/** @type {DeviceKind} */ kind, /** @type {number} */ index) => {
    const id = `device-${kind}-${own}`;
    const devices = named(kind);
    const found = known.filter((device) => device.kind === MEDIA_KINDS[kind]).length;
    const wish = wished[kind] ?? "";
    const isThere = devices.some(({ deviceId }) => deviceId === wish);
    return html`<div class="field">
      <label for=${id}>${t(`devices.${kind}`)}</label>
      <div class="device-line">
        <select
          id=${id}
          aria-describedby="${id}-hint"
          data-device=${kind}
          ?disabled=${kind === "speaker" && !canChooseSpeaker()}
          @change=${(/** @type {{target: HTMLSelectElement}} */ { target }) => choose(kind, target.value)}
        >
          <option value="" .selected=${live(!isThere)}>${t("devices.default")}</option>
          ${devices.map(
            ({ deviceId, label }, at) =>
              html`<option value=${deviceId} .selected=${live(deviceId === wish)}>
                ${label || t("devices.nameless", { kind: t(`devices.${kind}`), n: at + 1 })}
              </option>`,
          )}
        </select>
        ${index === 0 ? iconButton("retry", t("devices.refresh"), () => void refresh()) : nothing}
      </div>
      <p
        class="hint"
        id="${id}-hint"
        role="status"
        .textContent=${hintFor(kind, found, devices.length, wish !== "" && !isThere)}
      ></p>
    </div>`;
  };
  el.classList.add("devices");
  const draw = mountView(el, () => kinds.map(chooser));
  if (navigator.mediaDevices) on(navigator.mediaDevices, "devicechange", () => void refresh());
  void refresh();
  return {
    /** Device to open; "" is the system default. */
    get micId() {
      return idOf("mic");
    },
    get speakerId() {
      return idOf("speaker");
    },
    get cameraId() {
      return idOf("camera");
    },
    refresh, // for example once microphone access has been granted
  };
}

/** @param {DeviceKind} kind @param {number} found @param {number} named @param {boolean} isGone */
function hintFor(kind, found, named, isGone) {
  if (kind === "speaker") {
    if (!canChooseSpeaker()) return t("devices.no_choice");
    return named > 0 && isGone ? t("devices.gone") : "";
  }
  if (found === 0) return t("devices.none");
  if (named === 0) return t("devices.names_later");
  return isGone ? t("devices.gone") : "";
}
