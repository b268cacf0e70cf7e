/** Voice call: full duplex with audio. */

import { byId, toastProblem } from "../shared/lit.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { loadInSpareTime, nextTask } from "../shared/async.js";
import { startPage } from "../shared/page.js";
import { SettingsStore } from "../shared/settings-store.js";
import { duplexParts, loadCall, loadSoundFiles } from "../duplex/lib/call-parts.js";
import { followStatus } from "../duplex/lib/call-state.js";
import { mountCallRecorder } from "../duplex/ui/call-view.js";
import { followSettings, mountDuplexSetup } from "../duplex/ui/call-setup.js";
import { DUPLEX_FIELDS, LIVE_FIELDS, liveSettingsOf } from "../duplex/lib/call-settings.js";
import { duplexCall } from "../duplex/lib/call-kinds.js";
import { mountLiveView } from "../duplex/ui/live-view.js";
import { mountSourceChoice, SOURCE_FIELDS } from "../duplex/ui/source-choice.js";

/** @import { LiveSource } from "../../types/duplex.js" */

const LENGTH_PENALTY = 1.05;

const page = await startPage({ titleKey: "app.audio_duplex.title" });

const store = new SettingsStore("audio_duplex_settings", {
  ...LIVE_FIELDS,
  ...SOURCE_FIELDS,
  ...DUPLEX_FIELDS,
  length_penalty: { ...DUPLEX_FIELDS.length_penalty, initial: LENGTH_PENALTY },
});
const source = mountSourceChoice(byId("source"), store);
await nextTask();
const { prompt, modelName } = mountDuplexSetup({ mode: "audio_duplex", page, store, say });
await nextTask();

const devices = mountAudioDeviceSelector(byId("devices"), {
  prefix: "audio_duplex",
  onChange: (kind) => (kind === "mic" ? reopenMicrophone() : call.applySettings()),
});

const fileProgress = byId("file-progress", HTMLProgressElement);

/** @param {LiveSource | null} before */
async function openSource(before) {
  const microphone = { deviceId: devices.micId, echoCancellation: !store.get("headphones") };
  const sound = source.sound();
  fileProgress.hidden = store.get("source") === "mic";
  if (store.get("source") === "mic" || !sound) return view.openMicrophone(microphone);
  if (before?.useMicrophone && store.get("source") === "mix") {
    await before.useMicrophone(microphone);
    return before;
  }
  const { openSoundFile } = await loadSoundFiles();
  return openSoundFile({
    sound,
    microphone,
    hasMicrophone: store.get("source") === "mix",
    paddingBeforeS: store.get("pad_before_s"),
    paddingAfterS: store.get("pad_after_s"),
    onProgress({ elapsedS, totalS }) {
      fileProgress.max = totalS;
      fileProgress.value = elapsedS;
    },
  });
}

const call = duplexCall({
  parts: duplexParts("audio_duplex"),
  settings: () => liveSettingsOf(store, devices.speakerId),
  openSource,
});

/** Not during a file, which would restart. */
function reopenMicrophone() {
  if (store.get("source") === "mic") void call.reopenSource();
}

async function start() {
  if (store.get("source") !== "mic" && !source.sound()) return source.askForFile();
  await prompt.ready();
  await call.start(prompt.given());
  void devices.refresh(); // device names require permission
}

await nextTask();
const view = mountLiveView(call, {
  start: () => start().catch(toastProblem),
  maxKvTokens: () => store.get("max_kv_tokens"),
  modelName,
});

function say(/** @type {string} */ sentence) {
  if (!call.isActive) store.set("source", "mic");
  view.say(sentence);
}

mountCallRecorder(byId("after-call"), call, { appType: "audio_duplex", isOn: () => store.get("record") });
call.on("ended", () => (fileProgress.hidden = true));

followSettings(call, store, reopenMicrophone);

await nextTask();
followStatus(call, page.refreshStatus);
view.update();
page.ready();
loadInSpareTime(prompt.ready, view.loadInstruments, loadCall);

// The home page's button and suggestions start a call at once; a reload does not start another.
const query = new URLSearchParams(location.search);
if (query.has("start") || query.has("say")) {
  history.replaceState(null, "", location.pathname);
  const sentence = query.get("say");
  if (sentence) say(sentence);
  else if (isSecureContext) void view.start();
}
