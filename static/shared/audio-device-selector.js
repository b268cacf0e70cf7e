// @ts-check
/**
 * Chooses microphone, speaker and camera; remembers them and follows what is plugged in.
 */

import { fill, h, icon, on, setText } from "./dom.js";
import { onLangChange, t } from "./i18n.js";

/** @typedef {"mic" | "speaker" | "camera"} DeviceKind */
/** @typedef {Pick<Storage, "getItem" | "setItem">} KeptChoices */

/** @type {Record<DeviceKind, MediaDeviceKind>} */
const MEDIA_KINDS = { mic: "audioinput", speaker: "audiooutput", camera: "videoinput" };
/** Names the system gives to its own choice; ours is the empty one. */
const ALIASES = ["default", "communications"];

/**
 * @typedef {Object} DeviceSelectorOptions
 * @property {string} prefix of what is remembered: `<prefix>_mic`, `<prefix>_speaker`, `<prefix>_camera`
 * @property {readonly DeviceKind[]} [kinds]
 * @property {(kind: DeviceKind, deviceId: string) => void} [onChange] "" is the system's own choice
 * @property {KeptChoices | null} [storage]
 *
 * @typedef {Object} DeviceSelector
 * @property {string} micId what to open now; "" is the system's own choice
 * @property {string} speakerId
 * @property {string} cameraId
 * @property {() => Promise<void>} refresh look again, for example after the microphone was allowed
 * @property {() => void} close
 */

/** @returns {boolean} whether a page may choose the speaker in this browser */
function canChooseSpeaker() {
  return "setSinkId" in (globalThis.AudioContext?.prototype ?? {}) || "setSinkId" in HTMLMediaElement.prototype;
}

/** @returns {KeptChoices | null} */
function browserStorage() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

/** @returns {Promise<MediaDeviceInfo[]>} none where the browser tells nothing */
async function listDevices() {
  const devices = (await navigator.mediaDevices?.enumerateDevices?.().catch(() => [])) ?? [];
  return devices.filter(({ deviceId }) => !ALIASES.includes(deviceId));
}

/**
 * @param {HTMLElement} el
 * @param {DeviceSelectorOptions} options
 * @returns {DeviceSelector}
 */
export function mountAudioDeviceSelector(el, options) {
  const { prefix, kinds = ["mic", "speaker"], onChange, storage = browserStorage() } = options;
  const choosers = kinds.map((kind) => makeChooser(kind, `${prefix}_${kind}`, storage, onChange));
  const again = h("button", { type: "button", class: "button button-quiet button-icon" }, icon("retry"));
  el.classList.add("devices");
  fill(
    el,
    choosers.map(({ node }) => node),
  );
  choosers[0]?.line.append(again);
  /** @type {MediaDeviceInfo[]} */
  let known = [];
  const draw = () => {
    again.setAttribute("aria-label", t("devices.refresh"));
    again.title = t("devices.refresh");
    for (const chooser of choosers) chooser.draw(known);
  };
  const refresh = async () => {
    known = await listDevices();
    draw();
  };
  const ends = [on(again, "click", () => void refresh()), onLangChange(draw)];
  const media = navigator.mediaDevices;
  if (media) ends.push(on(media, "devicechange", () => void refresh()));
  draw();
  void refresh();
  /** @param {DeviceKind} kind */
  const idOf = (kind) => choosers.find((chooser) => chooser.kind === kind)?.current() ?? "";
  return {
    get micId() {
      return idOf("mic");
    },
    get speakerId() {
      return idOf("speaker");
    },
    get cameraId() {
      return idOf("camera");
    },
    refresh,
    close: () => [...ends, ...choosers.map(({ end }) => end)].forEach((end) => end()),
  };
}

let lastId = 0;

/**
 * @param {DeviceKind} kind
 * @param {string} key
 * @param {KeptChoices | null} storage
 * @param {DeviceSelectorOptions["onChange"]} onChange
 */
function makeChooser(kind, key, storage, onChange) {
  const id = `device-${kind}-${++lastId}`;
  const label = h("label", { for: id });
  const select = h("select", { id, "aria-describedby": `${id}-hint`, dataset: { device: kind } });
  const hint = h("p", { class: "hint", id: `${id}-hint`, role: "status" });
  const line = h("div", { class: "device-line" }, select);
  const node = h("div", { class: "field" }, label, line, hint);
  let wished = storage?.getItem(key) ?? "";
  /** Ids the browser tells; none before the first permission, and then a remembered one is as good. */
  let ids = /** @type {string[]} */ ([]);
  const end = on(select, "change", () => {
    wished = select.value;
    try {
      storage?.setItem(key, wished);
    } catch {
      // Storage may be full or forbidden; the choice then lasts as long as the page.
    }
    setText(hint, "");
    onChange?.(kind, wished);
  });
  return {
    kind,
    node,
    line,
    end,
    current: () => (ids.length === 0 || ids.includes(wished) ? wished : ""),
    /** @param {MediaDeviceInfo[]} devices */
    draw(devices) {
      const mine = devices.filter((device) => device.kind === MEDIA_KINDS[kind]);
      const named = mine.filter(({ deviceId }) => deviceId);
      setText(label, t(`devices.${kind}`));
      fill(
        select,
        h("option", { value: "" }, t("devices.default")),
        named.map((device, i) => optionOf(device, kind, i)),
      );
      ids = named.map(({ deviceId }) => deviceId);
      const isThere = ids.includes(wished);
      select.value = isThere ? wished : "";
      select.disabled = kind === "speaker" && !canChooseSpeaker();
      setText(hint, hintFor(kind, mine.length, named.length, wished !== "" && !isThere));
    },
  };
}

/** @param {MediaDeviceInfo} device @param {DeviceKind} kind @param {number} index */
function optionOf({ deviceId, label }, kind, index) {
  const name = label || t("devices.nameless", { kind: t(`devices.${kind}`), n: index + 1 });
  return h("option", { value: deviceId }, name);
}

/**
 * @param {DeviceKind} kind
 * @param {number} found
 * @param {number} named
 * @param {boolean} isGone
 */
function hintFor(kind, found, named, isGone) {
  if (kind === "speaker") {
    if (!canChooseSpeaker()) return t("devices.no_choice");
    return named > 0 && isGone ? t("devices.gone") : "";
  }
  if (found === 0) return t("devices.none");
  if (named === 0) return t("devices.names_later");
  return isGone ? t("devices.gone") : "";
}
