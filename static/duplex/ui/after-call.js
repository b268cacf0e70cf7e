// @ts-check
/**
 * What is offered after a call: download of what the browser recorded, replay and link where the server kept it. And the
 * recording itself, while the settings say so.
 */

import { t } from "../../shared/texts.js";
import { html, icon, mountView, nothing } from "../../shared/lit.js";
import { mountOfferShare } from "../../shared/late-parts.js";
import { addRecent } from "../../shared/recent-sessions.js";
import { toast } from "../../shared/notice.js";
import { createCapture } from "../lib/capture.js";
import { SessionRecorder } from "../lib/session-recorder.js";

/** @import { BrowserRecording } from "../../shared/save-share.js" */
/** @import { DuplexCall } from "../lib/call-kinds.js" */

/**
 * @typedef {Object} FinishedCall
 * @property {string | null} recordingId of the server; null if it keeps none
 * @property {BrowserRecording | null} [sound] what the browser recorded
 * @property {() => Promise<BrowserRecording | null>} [getBrowserRecording] what is shared
 */

/**
 * @param {HTMLElement} el
 * @param {{appType: string, replayKey?: string}} options
 * @returns {{update: (call: FinishedCall | null) => void}} null hides the offer
 */
export function mountAfterCall(el, { appType, replayKey = "live.replay" }) {
  const shareBox = document.createElement("div");
  shareBox.className = "share-box";
  const offer = mountOfferShare(shareBox);
  /** @type {FinishedCall | null} */
  let finished = null;
  /** @type {string | null} */
  let soundUrl = null;
  const offers = (/** @type {FinishedCall} */ { recordingId, sound }) => [
    soundUrl &&
      html`<a class="button" href=${soundUrl} download=${sound?.fileName ?? ""} data-action="download"
        >${icon("download")}${t("live.download")}</a
      >`,
    recordingId && html`<a class="button" href="/s/${recordingId}" data-action="replay">${icon("play")}${t(replayKey)}</a>`,
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
      // Not loaded when the server is gone; what was recorded here is there all the same.
      offer.update(call && { recordingId, appType, getBrowserRecording }).catch(() => (shareBox.hidden = true));
      draw();
    },
  };
}

/**
 * @param {HTMLElement} el
 * @param {DuplexCall} call
 * @param {{appType: string, isOn: () => boolean, video?: () => BrowserRecording | null}} options
 *   `video`: what the page recorded itself; shared in place of the sound
 */
export function mountCallRecorder(el, call, { appType, isOn, video }) {
  const after = mountAfterCall(el, { appType });
  /** @type {SessionRecorder | null} */
  let recorder = null;
  call.on("devices", ({ isStarting }) => {
    if (isStarting) after.update(null);
  });
  call.on("opened", ({ player }) => {
    if (recorder || !isOn()) return; // another microphone in the middle of the call continues in the same file
    const fresh = new SessionRecorder(createCapture);
    recorder = fresh;
    fresh.addEventListener("full", () => toast(t("live.recording_full")));
    const off = call.on("prepared", () => {
      off();
      // The call may end while the recorder begins; then there is nothing to record.
      if (recorder === fresh) fresh.start(call, player.output).catch(() => undefined);
    });
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
