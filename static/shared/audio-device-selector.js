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
 * @property {(kind: DeviceKind, deviceId: string) => void} [onChange] another device is to be used; "" is the system default
 *
 * @typedef {ReturnType<typeof mountAudioDeviceSelector>} DeviceSelector
 */

/** Whether this browser lets a page choose the speaker. */
const canChooseSpeaker = () =>
  "setSinkId" in (globalThis.AudioContext?.prototype ?? {}) || "setSinkId" in HTMLMediaElement.prototype;

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
  const lookUp = (/** @type {DeviceKind} */ kind) => {
    const found = known.filter((device) => device.kind === MEDIA_KINDS[kind]);
    const named = found.filter(({ deviceId }) => deviceId);
    const wish = wished[kind] ?? "";
    return { found, named, wish, isThere: named.some(({ deviceId }) => deviceId === wish) };
  };
  /** Until permission is granted the browser hides device ids, so a remembered id is kept. @param {DeviceKind} kind */
  const idOf = (kind) => {
    const { named, wish, isThere } = lookUp(kind);
    return named.length === 0 || isThere ? wish : "";
  };
  const chooser = (/** @type {DeviceKind} */ kind, /** @type {number} */ index) => {
    const id = `device-${kind}-${own}`;
    const { found, named, wish, isThere } = lookUp(kind);
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
          ${named.map(
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
        .textContent=${hintFor(kind, found.length, named.length, wish !== "" && !isThere)}
      ></p>
    </div>`;
  };
  el.classList.add("devices");
  const draw = mountView(el, () => kinds.map(chooser));
  /** The chosen device may have come or gone, so that another one is to be used. */
  const follow = async () => {
    const before = kinds.map(idOf);
    await refresh();
    kinds.forEach((kind, at) => idOf(kind) === before[at] || onChange?.(kind, idOf(kind)));
  };
  if (navigator.mediaDevices) on(navigator.mediaDevices, "devicechange", () => void follow());
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
  if (kind === "speaker" && !canChooseSpeaker()) return t("devices.no_choice");
  if (named > 0) return isGone ? t("devices.gone") : "";
  if (kind === "speaker") return "";
  return t(found > 0 ? "devices.names_later" : "devices.none");
}
