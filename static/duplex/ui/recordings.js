// @ts-check
/**
 * What a video call leaves behind: recordings of this browser, replay and link of the server's. Loaded
 * when a call begins. The page brings the elements by their ids (see omni.html).
 */

import { byId } from "../../shared/dom.js";
import { SettingsStore } from "../../shared/settings-store.js";
import { mountCallRecorder } from "./after-call.js";
import { RECORD_FIELDS, mountRecordSettings, mountRecordingPanel } from "./recording-panel.js";

/**
 * @param {import("../lib/duplex-call.js").DuplexCall} call
 * @param {Pick<import("./recording-panel.js").RecordingOptions, "video" | "isAutomatic" | "look" | "subtitle">} options
 */
export function mountRecordings(call, options) {
  const store = new SettingsStore("omni_rec_settings", RECORD_FIELDS, localStorage);
  const dialog = byId("record-settings", HTMLDialogElement);
  mountRecordSettings(dialog, store);
  const { latest } = mountRecordingPanel(byId("recorded", HTMLElement), call, {
    ...options,
    button: byId("record", HTMLButtonElement),
    store,
  });
  mountCallRecorder(byId("after-call", HTMLElement), call, {
    appType: "omni",
    isOn: () => false,
    video() {
      const file = latest();
      return file?.name.startsWith(call.state.sessionId) ? { blob: file.blob, fileName: file.name } : null;
    },
  });
  return { openSettings: () => dialog.showModal() };
}
