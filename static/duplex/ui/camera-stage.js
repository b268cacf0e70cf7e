/** The picture of a video call: camera or file in one video element, with an empty state. */

import { late } from "../../shared/async.js";
import { html, iconButton, mountView, on, textButton } from "../../shared/lit.js";
import { CodedError, t } from "../../shared/texts.js";
import { cameraCode } from "../lib/call-state.js";

/** @import { Frame } from "../../../types/devices.js" */
/** @import { Camera } from "../lib/camera.js" */
/** @import { View } from "../../shared/lit.js" */
/** @import { OmniStore } from "../lib/call-settings.js" */

const loadCamera = late(() => import("../lib/camera.js"));

/**
 * @typedef {Object} CameraStageOptions
 * @property {HTMLVideoElement} video
 * @property {() => string} cameraId "" for the system default
 * @property {() => boolean} isFile whether a file is the source
 * @property {() => boolean} isMirrored
 * @property {(isFront: boolean) => void} onFlip the camera was switched
 * @property {() => void} onPreview the visitor asked for a preview before the call
 * @property {() => void} onLost the camera was taken away
 */

export function mountCameraStage(/** @type {HTMLElement} */ el, /** @type {CameraStageOptions} */ options) {
  const { video, isFile } = options;
  const empty = document.createElement("div");
  empty.className = "screen-empty";
  el.append(empty);
  const loadGrab = late(loadCamera, ({ createFrameGrabber }) => createFrameGrabber(video));
  /** @type {Camera | null} */ let camera = null;
  /** @type {string | null} */ let fileUrl = null;
  let isOpening = false;
  let hasLost = false;

  const draw = mountView(empty, () => {
    const hasPicture = isFile() ? fileUrl !== null : camera !== null;
    el.dataset.picture = hasPicture ? (isFile() ? "file" : "camera") : "none";
    el.dataset.mirrored = String(!isFile() && camera !== null && options.isMirrored());
    empty.hidden = hasPicture;
    video.setAttribute("aria-label", t(isFile() ? "omni.file_picture" : "omni.own_picture"));
    return html`<p>
        ${t(isFile() ? "omni.no_file" : isOpening ? "omni.opening" : hasLost ? "omni.no_picture" : "omni.no_camera")}
      </p>
      ${textButton(t("omni.camera_on"), () => options.onPreview(), {
        sign: "camera",
        action: "camera-on",
        isShown: !isFile() && !isOpening,
      })}`;
  });
  const close = () => {
    camera?.close();
    camera = null;
    draw();
  };
  const tryOpen = async (/** @type {(camera: Awaited<ReturnType<typeof loadCamera>>) => Promise<Camera>} */ open) => {
    isOpening = true;
    hasLost = false;
    draw();
    try {
      const opened = await open(await loadCamera());
      if (isFile()) return opened.close(); // the source was changed while the browser asked
      camera = opened.isOpen ? opened : null;
    } catch (error) {
      close();
      throw new CodedError(cameraCode(error), error, ""); // the text of the code is sufficient
    } finally {
      isOpening = false;
      draw();
    }
  };

  return {
    get hasCamera() {
      return camera !== null;
    },
    /** Grabs a frame of the current picture. @returns {Promise<Frame | null>} */
    grab: async () => (el.dataset.picture === "none" ? null : (await loadGrab())()),
    /** Opens the camera, unless it is open. @throws {CodedError} */
    async open() {
      if (camera || isOpening) return;
      await tryOpen(async ({ openCamera }) => {
        const opened = await openCamera({ deviceId: options.cameraId() || undefined, video });
        on(opened, "ended", () => {
          if (camera !== opened) return;
          hasLost = true;
          close();
          options.onLost();
        });
        return opened;
      });
    },
    /** Switches to the selected camera. @throws {CodedError} */
    async reopen() {
      const open = camera;
      if (open)
        await tryOpen(
          async () => (await open.switchTo({ facing: open.facing, deviceId: options.cameraId() || undefined }), open),
        );
    },
    /** Switches between front and rear camera. @returns {Promise<boolean>} false: there is only one @throws {CodedError} */
    async flip() {
      const open = camera;
      if (!open) return false;
      const before = open.deviceId;
      await tryOpen(async () => (await open.flip(), open));
      options.onFlip(open.facing === "user");
      return open.deviceId !== before;
    },
    close,
    /** @param {string | null} url of a file, null for none */
    setFile(url) {
      fileUrl = url;
      draw();
    },
    update: draw,
  };
}

// The toolbar of the picture.

/**
 * @param {{bar: HTMLElement, corner: HTMLElement}} parts
 * @param {{store: OmniStore, hasCamera: () => boolean, flip: () => void}} options
 */
export function mountScreenTools({ bar, corner }, { store, hasCamera, flip }) {
  const full = mountFullView(() => drawCorner());
  bar.setAttribute("role", "group");
  /**
   * @param {string} action
   * @param {() => void} run
   * @param {{sign?: string | View, key?: string, isOn?: boolean, isShown?: boolean, isOff?: boolean}} [look] with `isOn`: a toggle
   */
  const tool = (action, run, { sign = action, key = `omni.${action}`, isOn, ...look } = {}) =>
    iconButton(sign, t(key), run, { action, style: "", isPressed: isOn, ...look });
  /** @param {"hd" | "mirror" | "subtitles"} name */
  const turn = (name) => () => store.set(name, !store.get(name));
  const drawBar = mountView(bar, () => {
    const isShown = store.get("source") === "live";
    bar.setAttribute("aria-label", t("omni.tools"));
    return [
      tool("hd", turn("hd"), { sign: html`HD`, isOn: store.get("hd") }),
      tool("flip", flip, { isShown, isOff: !hasCamera() }),
      tool("mirror", turn("mirror"), { isShown, isOn: store.get("mirror") }),
      tool("subtitles", turn("subtitles"), { isOn: store.get("subtitles") }),
    ];
  });
  const drawCorner = mountView(corner, () =>
    tool("fullscreen", () => full.toggle(), {
      key: full.isFull() ? "omni.fullscreen_leave" : "omni.fullscreen",
      isOn: full.isFull(),
    }),
  );
  return {
    update() {
      drawBar();
      drawCorner();
    },
  };
}

// Fullscreen.

/** Shows the call in fullscreen; elements marked `data-behind` are inert meanwhile. @param {() => void} onChange */
function mountFullView(onChange) {
  const root = document.documentElement;
  const isFull = () => root.dataset.full === "true";
  const set = (/** @type {boolean} */ next) => {
    if (next === isFull()) return;
    if (next) root.dataset.full = "true";
    else delete root.dataset.full;
    for (const element of document.querySelectorAll("[data-behind]")) element.toggleAttribute("inert", next);
    onChange();
  };
  on(document, "fullscreenchange", () => {
    if (!document.fullscreenElement) set(false);
  });
  on(document, "keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && isFull() && !document.fullscreenElement && !document.querySelector("dialog[open]")) set(false);
  });
  return {
    isFull,
    async toggle() {
      set(!isFull());
      if (isFull())
        await root.requestFullscreen?.().catch(() => undefined); // if rejected, it fills the window
      else if (document.fullscreenElement) await document.exitFullscreen();
    },
  };
}
