// @ts-check
/**
 * Everything around the picture of a video call that only shows: subtitles, last lines, level bars,
 * what was sent, recordings. The page brings the elements by their ids (see omni.html).
 */

import { byId, on } from "../../shared/dom.js";
import { formatNumber } from "../../shared/formats.js";
import { t } from "../../shared/i18n.js";
import { html, mountView } from "../../shared/lit.js";
import { late } from "../../shared/late.js";
import { subtitleLookOf } from "./omni-settings.js";
import { mountLevelBars } from "./running-bars.js";
import { mountPictureFigures } from "./screen-tools.js";
import { mountChatOverlay, mountSubtitles } from "./subtitles.js";

/** @typedef {import("./omni-settings.js").OmniStore} OmniStore */

// The lengths of answers that have a name, beside the slider of the length penalty.

const LENGTHS = Object.freeze({ concise: 1.05, balanced: 1.1, verbose: 1.2 });
const DIGITS = 2;

/**
 * @param {HTMLElement} el
 * @param {OmniStore} store
 */
function mountLengthPills(el, store) {
  el.setAttribute("role", "group");
  const draw = mountView(el, () => {
    el.setAttribute("aria-label", t("live.settings.length"));
    return Object.entries(LENGTHS).map(
      ([name, value]) =>
        html`<button
          type="button"
          class="pill"
          data-length=${name}
          aria-pressed=${String(store.get("length_penalty") === value)}
          @click=${() => store.set("length_penalty", value)}
        >
          ${t(`omni.length_${name}`)} ${formatNumber(value, DIGITS)}
        </button>`,
    );
  });
  on(store, "change", draw);
}

/**
 * @typedef {Object} PictureViewOptions
 * @property {import("./omni-settings.js").OmniStore} store
 * @property {HTMLVideoElement} video
 * @property {import("../lib/picture-taker.js").PictureTaker} pictures
 */

/**
 * @param {import("../lib/duplex-call.js").DuplexCall} call
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

  const recordings = late(
    () => import("./recordings.js"),
    ({ mountRecordings }) =>
      mountRecordings(call, { video, look, subtitle: subtitles.text, isAutomatic: () => store.get("record") }),
  );

  call.on("opened", ({ source }) => pictures.attach(source, (base64) => call.sendPicture(base64)));
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
