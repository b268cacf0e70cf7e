// @ts-check
/**
 * Everything around the picture of a video call that only shows: subtitles, last lines, level bars,
 * what was sent, recordings. The page brings the elements by their ids (see omni.html).
 */

import { byId, h, on, setText } from "../../shared/dom.js";
import { late } from "../../shared/late.js";
import { subtitleLookOf } from "./omni-settings.js";
import { mountPictureFigures } from "./screen-tools.js";
import { mountChatOverlay, mountSubtitles } from "./subtitles.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { levelShare } from "./level-meter.js";
import { mountRunningBars } from "./running-bars.js";
import { formatNumber } from "../../shared/formats.js";

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
  const pills = Object.entries(LENGTHS).map(([name, value]) => {
    const node = h("button", { type: "button", class: "pill", dataset: { length: name } });
    on(node, "click", () => store.set("length_penalty", value));
    el.append(node);
    return { name, value, node };
  });
  const draw = () => {
    el.setAttribute("aria-label", t("live.settings.length"));
    for (const { name, value, node } of pills) {
      setText(node, `${t(`omni.length_${name}`)} ${formatNumber(value, DIGITS)}`);
      node.setAttribute("aria-pressed", String(store.get("length_penalty") === value));
    }
  };
  on(store, "change", draw);
  onLangChange(draw);
  draw();
}

// The last seconds of a call as running bars: what was heard and what was said.

const TICK_MS = 50;
const KEPT = 400;
const BAR_PX = 3;

/**
 * @param {HTMLElement} el
 * @param {{levels: () => {inputRms: number, outputRms: number}, isLive: () => boolean}} source
 */
function mountLevelBars(el, { levels, isLive }) {
  const canvas = h("canvas", { class: "level-bars", role: "img" });
  el.append(canvas);
  const bars = mountRunningBars(canvas, { kept: KEPT, barPx: BAR_PX });
  setInterval(() => {
    if (!isLive() || document.hidden) return;
    const { inputRms, outputRms } = levels();
    const [heard, said] = [levelShare(inputRms), levelShare(outputRms)];
    bars.push(Math.max(heard, said), said > heard ? "answer" : "speech");
  }, TICK_MS);
  const name = () => canvas.setAttribute("aria-label", t("omni.levels"));
  onLangChange(name);
  name();
  return { clear: bars.clear };
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
