/**
 * Offers after a call: download of the browser's recording, replay and link of the server's. Also makes the browser's
 * recording.
 */

import { t } from "../../shared/texts.js";
import { html, icon, mountView, nothing } from "../../shared/lit.js";
import { late } from "../../shared/async.js";
import { mountOfferShare } from "../../shared/late-parts.js";
import { addRecent } from "../../shared/memory.js";
import { toast, toastProblem } from "../../shared/notice.js";

/** @import { BrowserRecording } from "../../shared/save-share.js" */
/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { SessionRecorder } from "../lib/session-recorder.js" */

const loadRecorder = late(() => Promise.all([import("../lib/session-recorder.js"), import("../lib/capture.js")]));

/**
 * @typedef {Object} FinishedCall
 * @property {string | null} recordingId the server's recording; null if there is none
 * @property {BrowserRecording | null} [sound] the browser's recording
 * @property {() => Promise<BrowserRecording | null>} [getBrowserRecording] the file to share
 */

/**
 * @param {HTMLElement} el
 * @param {{appType: string}} options
 * @returns {{update: (call: FinishedCall | null) => void}} null hides the offer
 */
export function mountAfterCall(el, { appType }) {
  const shareBox = document.createElement("div");
  shareBox.className = "share-box";
  const offer = mountOfferShare(shareBox);
  /** @type {FinishedCall | null} */ let finished = null;
  /** @type {string | null} */ let soundUrl = null;
  const offers = (/** @type {FinishedCall} */ { recordingId, sound }) => [
    soundUrl &&
      html`<a class="button" href=${soundUrl} download=${sound?.fileName ?? ""} data-action="download"
        >${icon("download")}${t("live.download")}</a
      >`,
    recordingId && html`<a class="button" href="/s/${recordingId}" data-action="replay">${icon("play")}${t("live.replay")}</a>`,
    shareBox,
  ];
  const draw = mountView(el, () => (finished ? offers(finished) : nothing));
  el.hidden = true;
  return {
    update(call) {
      if (soundUrl) URL.revokeObjectURL(soundUrl);
      finished = call;
      soundUrl = call?.sound ? URL.createObjectURL(call.sound.blob) : null;
      el.hidden = call === null;
      if (call?.recordingId) addRecent(localStorage, call.recordingId, appType);
      const { recordingId = null, getBrowserRecording } = call ?? {};
      // Loading fails if the server is gone; the browser's recording is available all the same.
      offer.update(call && { recordingId, appType, getBrowserRecording }).catch(() => (shareBox.hidden = true));
      draw();
    },
  };
}

/**
 * @param {HTMLElement} el
 * @param {DuplexCall} call
 * @param {{appType: string, isOn: () => boolean, video?: () => BrowserRecording | null}} options
 *   `video`: the page's own video recording, shared instead of the audio
 */
export function mountCallRecorder(el, call, { appType, isOn, video }) {
  const after = mountAfterCall(el, { appType });
  /** @type {SessionRecorder | null} */ let recorder = null;
  call.on("devices", ({ isStarting }) => {
    if (isStarting) after.update(null);
  });
  const record = async (/** @type {AudioNode | null} */ answer) => {
    const [{ SessionRecorder }, { createCapture }] = await loadRecorder();
    if (recorder || !call.isActive) return;
    const fresh = new SessionRecorder(createCapture);
    recorder = fresh;
    fresh.addEventListener("full", () => toast(t("live.recording_full")));
    // The call may have ended while the recorder was starting.
    const start = () => recorder === fresh && fresh.start(call, answer).catch(() => undefined);
    if (call.state.phase === "running") return start();
    const off = call.on("prepared", () => {
      off();
      start();
    });
  };
  call.on("opened", ({ player }) => {
    // After a change of microphone the same file continues.
    if (!recorder && isOn()) record(player.output).catch(toastProblem);
  });
  call.beforeClose(async () => {
    await recorder?.stop();
  });
  call.on("ended", ({ state: { preparedAtMs, sessionId, recordingSessionId: recordingId } }) => {
    const blob = preparedAtMs === null ? null : (recorder?.encode() ?? null);
    recorder = null;
    const sound = blob && { blob, fileName: `${sessionId}.wav` };
    if (preparedAtMs === null) after.update(null);
    else after.update({ recordingId, sound, getBrowserRecording: async () => video?.() ?? sound });
  });
}
