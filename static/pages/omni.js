/** Video call: full duplex with camera or video file. */

import { byId, mountView, on, toast, toastProblem } from "../shared/lit.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { late, loadInSpareTime, nextTask } from "../shared/async.js";
import { t } from "../shared/texts.js";
import { liveSettingsOf, OMNI_FIELDS, sliceCountOf } from "../duplex/lib/call-settings.js";
import { startPage } from "../shared/page.js";
import { iconPills } from "../shared/settings-form.js";
import { SettingsStore } from "../shared/settings-store.js";
import { followStatus, problemOfDevice } from "../duplex/lib/call-state.js";
import { duplexParts, loadCall } from "../duplex/lib/call-parts.js";
import { createPictureTaker } from "../duplex/lib/picture-taker.js";
import { mountCameraStage, mountScreenTools } from "../duplex/ui/camera-stage.js";
import { followSettings, mountDuplexSetup } from "../duplex/ui/call-setup.js";
import { duplexCall } from "../duplex/lib/call-kinds.js";
import { mountLiveView } from "../duplex/ui/live-view.js";

/** @import { LiveSource } from "../../types/duplex.js" */

const SOURCES = Object.freeze({ live: "camera", file: "film" });

const page = await startPage({ titleKey: "app.omni.title" });
const store = new SettingsStore("omni_settings", OMNI_FIELDS);
const video = byId("picture", HTMLVideoElement);
const isFile = () => store.get("source") === "file";
const { prompt, modelName } = mountDuplexSetup({ mode: "omni", page, store, say });
await nextTask();

const devices = mountAudioDeviceSelector(byId("devices"), {
  prefix: "omni",
  kinds: ["mic", "speaker", "camera"],
  onChange(kind) {
    if (kind === "mic") reopenMicrophone();
    else if (kind === "camera") void useCamera(() => stage.reopen());
    else call.applySettings();
  },
});

const stage = mountCameraStage(byId("screen"), {
  video,
  cameraId: () => devices.cameraId,
  isFile,
  isMirrored: () => store.get("mirror"),
  onFlip: (isFront) => store.set("mirror", isFront),
  onPreview: () => void useCamera(() => stage.open()),
  onLost() {
    view.notice.show(problemOfDevice({ code: call.isActive ? "camera_lost" : "camera_unplugged" }, true));
    tools.update();
  },
});
const pictures = createPictureTaker({ grab: stage.grab, isFile });
const microphoneWish = () => ({ deviceId: devices.micId, echoCancellation: !store.get("headphones") });
/** @type {ReturnType<typeof import("../duplex/ui/file-mode.js")["mountFileMode"]> | null} */ let openedFileMode = null;
const fileMode = late(
  () => import("../duplex/ui/file-mode.js"),
  ({ mountFileMode }) =>
    (openedFileMode = mountFileMode(
      {
        panel: byId("file-panel"),
        mixer: byId("mixer", HTMLDetailsElement),
        progress: byId("file-progress", HTMLProgressElement),
        video,
      },
      { store, onFile: stage.setFile, microphone: microphoneWish },
    )),
);
const drawSource = mountView(byId("source"), () =>
  iconPills(SOURCES, {
    label: t("omni.source"),
    text: (source) => t(`omni.source_${source}`),
    current: store.get("source"),
    choose: (source) => store.set("source", source),
  }),
);

/** @param {LiveSource | null} before */
async function openSource(before) {
  if (isFile()) {
    if (before?.useMicrophone && store.get("file_sound") !== "file")
      return before.useMicrophone(microphoneWish()).then(() => before);
    return (await fileMode()).open();
  }
  await stage.open();
  tools.update();
  return view.openMicrophone(microphoneWish());
}

const call = duplexCall({
  parts: duplexParts("omni"),
  settings: () => liveSettingsOf(store, devices.speakerId),
  openSource,
  maxSliceNums: () => sliceCountOf(store),
});

/** Not during a file, which would restart. */
function reopenMicrophone() {
  if (!isFile()) void call.reopenSource();
}

/** @param {() => Promise<unknown>} use operation on the camera; its errors are shown */
async function useCamera(use) {
  try {
    await use();
    view.notice.clear();
    void devices.refresh(); // device names require permission
  } catch (error) {
    view.notice.show(problemOfDevice(error, call.isActive));
  }
  tools.update();
}

async function start() {
  const mode = isFile() ? await fileMode() : null;
  if (mode && !mode.file()) return mode.askForFile();
  const [shown] = await Promise.all([showPicture(), prompt.ready()]);
  shown.prepare();
  const { systemPrompt, prepare } = prompt.given();
  const isOpen = await call.start({ systemPrompt, prepare: { ...prepare, max_slice_nums: sliceCountOf(store) } });
  if (!isOpen && !call.isActive) release(); // not what a call started by an earlier press uses
  void devices.refresh();
}

async function showSource() {
  byId("file-panel").hidden = !isFile();
  if (isFile()) await (await fileMode()).show();
}

function release() {
  openedFileMode?.release();
  stage.close();
  tools.update();
}

await nextTask();
const view = mountLiveView(call, {
  start: () => start().catch(toastProblem),
  maxKvTokens: () => store.get("max_kv_tokens"),
  modelName,
  hasVision: true,
  startKey: "omni.start",
  openCamera: () => void useCamera(() => stage.open()),
  useFile: () => (view.notice.clear(), store.set("source", "file")),
});

function say(/** @type {string} */ sentence) {
  if (!call.isActive) store.set("source", "live");
  view.say(sentence);
}

await nextTask();
const tools = mountScreenTools(
  { bar: byId("tools"), corner: byId("screen-corner") },
  {
    store,
    hasCamera: () => stage.hasCamera,
    flip: () => void useCamera(async () => (await stage.flip()) || toast(t("omni.one_camera"))),
  },
);
const showPicture = late(
  () => import("../duplex/ui/picture-view.js"),
  ({ mountPictureView }) => mountPictureView(call, { store, video, pictures }),
);
on(byId("open-record-settings"), "click", () => showPicture().then((shown) => shown.openRecordSettings(), toastProblem));

call.on("ended", release);

followSettings(call, store, reopenMicrophone);
let shownSource = store.get("source");
on(store, "change", () => {
  if (shownSource !== store.get("source")) {
    stage.close();
    showSource().catch(toastProblem);
  }
  shownSource = store.get("source");
  drawSource();
  stage.update();
  tools.update();
});

showSource().catch(toastProblem);
await nextTask();
followStatus(call, page.refreshStatus);
view.update();
page.ready();
loadInSpareTime(prompt.ready, showPicture, view.loadInstruments, loadCall);
