// @ts-check
/**
 * Records a call in the browser while the settings say so, and offers it afterwards: download here,
 * replay and link on the server where the server kept it as well.
 */

import { fill, h, icon } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { mountOfferShare } from "../../shared/offer-share.js";
import { addRecent } from "../../shared/recent-sessions.js";
import { toast } from "../../shared/toast.js";
import { SessionRecorder } from "../lib/session-recorder.js";

/** @typedef {import("../lib/duplex-call.js").DuplexCall} LiveCall */

/** @typedef {import("../../shared/save-share.js").BrowserRecording} BrowserRecording */

/**
 * @typedef {Object} FinishedCall
 * @property {string} sessionId
 * @property {string | null} recordingId of the server; null if it keeps none
 * @property {Blob | null} sound what the browser recorded
 * @property {boolean} wasHeld somebody could have spoken
 */

/**
 * @param {HTMLElement} el
 * @param {LiveCall} call
 * @param {{appType: string, isOn: () => boolean, video?: () => BrowserRecording | null}} options
 *   `video`: what the page recorded itself; shared in place of the sound
 */
export function mountCallRecorder(el, call, { appType, isOn, video }) {
  const shareBox = h("div", { class: "share-box" });
  const offer = mountOfferShare(shareBox);
  /** @type {SessionRecorder | null} */
  let recorder = null;
  /** @type {FinishedCall | null} */
  let finished = null;
  /** @type {string | null} */
  let soundUrl = null;

  const forget = () => {
    if (soundUrl) URL.revokeObjectURL(soundUrl);
    [finished, soundUrl] = [null, null];
    void offer.update(null);
    draw();
  };
  const draw = () => {
    el.hidden = !finished?.wasHeld;
    if (!finished || el.hidden) return fill(el);
    fill(el, offers(finished, soundUrl), shareBox);
  };
  const offerNow = (/** @type {FinishedCall} */ { recordingId, sessionId, sound }) =>
    offer.update({
      recordingId,
      appType,
      getBrowserRecording: async () => video?.() ?? (sound && { blob: sound, fileName: `${sessionId}.wav` }),
    });
  onLangChange(draw);
  draw();

  call.on("devices", ({ isStarting }) => {
    if (isStarting) forget();
  });
  call.on("opened", ({ player }) => {
    if (recorder || !isOn()) return; // another microphone in the middle of the call goes on in the same file
    const fresh = new SessionRecorder();
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
  call.on("ended", ({ state }) => {
    const sound = state.preparedAtMs === null ? null : (recorder?.encode() ?? null);
    recorder = null;
    const recordingId = state.recordingSessionId;
    finished = { sessionId: state.sessionId, recordingId, sound, wasHeld: state.preparedAtMs !== null };
    soundUrl = sound && URL.createObjectURL(sound);
    if (recordingId) addRecent(localStorage, recordingId, appType);
    // Without the server nothing can be shared, and the notice says already that it is gone.
    if (finished.wasHeld) offerNow(finished).catch(() => undefined);
    draw();
  });
}

/** @param {FinishedCall} finished @param {string | null} soundUrl */
function offers({ recordingId, sessionId }, soundUrl) {
  return [
    soundUrl &&
      h(
        "a",
        { class: "button", href: soundUrl, download: `${sessionId}.wav`, dataset: { action: "download" } },
        icon("download"),
        t("live.download"),
      ),
    recordingId &&
      h("a", { class: "button", href: `/s/${recordingId}`, dataset: { action: "replay" } }, icon("play"), t("live.replay")),
  ];
}
