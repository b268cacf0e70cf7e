// @ts-check
/**
 * Everything around the picture of a video call that only shows: subtitles, last lines, level bars,
 * what was sent, recordings. The page brings the elements by their ids (see omni.html).
 */

import { byId, on } from "../../shared/dom.js";
import { late } from "../../shared/late.js";
import { mountLengthPills } from "./length-pills.js";
import { mountLevelBars } from "./level-bars.js";
import { subtitleLookOf } from "./omni-settings.js";
import { mountPictureFigures } from "./screen-tools.js";
import { mountChatOverlay, mountSubtitles } from "./subtitles.js";

/**
 * @typedef {Object} PictureViewOptions
 * @property {import("./omni-settings.js").OmniStore} store
 * @property {HTMLVideoElement} video
 * @property {import("../lib/picture-taker.js").PictureTaker} pictures
 */

/**
 * @param {import("./live-call.js").LiveCall} call
 * @param {PictureViewOptions} options
 */
export function mountPictureView(call, { store, video, pictures }) {
  const part = (/** @type {string} */ id) => byId(id, HTMLElement);
  const turns = () => call.state.turns;
  const look = () => subtitleLookOf(store);
  const subtitles = mountSubtitles(part("subtitles"), { turns, look });
  const overlay = mountChatOverlay(part("chat-overlay"), { modelTurns: turns, userTurns: () => call.userTurns.turns });
  const bars = mountLevelBars(part("level-bars"), { levels: () => call.levels(), isLive: () => call.isActive });
  const figures = mountPictureFigures(part("figures"));
  mountLengthPills(part("length-pills"), store);

  const recordings = late(() => import("./recordings.js"), ({ mountRecordings }) =>
    mountRecordings(call, { video, look, subtitle: subtitles.text, isAutomatic: () => store.get("record") }),
  );

  call.on("opened", ({ source, sendPicture }) => pictures.attach(source, sendPicture));
  call.on("state", (state) => {
    figures.update(pictures.sent(), state);
    subtitles.update();
    overlay.update();
  });
  call.on("heard", overlay.update);
  on(store, "change", subtitles.update);
  return {
    async openRecordSettings() {
      (await recordings()).openSettings();
    },
    /** A new call begins. */
    async prepare() {
      pictures.clear();
      bars.clear();
      await recordings();
    },
  };
}
