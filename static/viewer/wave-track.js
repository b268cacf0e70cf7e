// @ts-check
/**
 * Both voices as waveforms, the user's above, the model's below: the part that is in view.
 */

import { themeColours, onThemeChange } from "../shared/canvas-tools.js";
import { loadWavesurfer } from "../shared/vendor.js";
import { openPeaks } from "./peak-source.js";

/** @typedef {import("./time-axis.js").View} View */

const LANE_PX = 52;
const MOST_PEAKS = 4_000; // more than any screen has pixels
const FULL_SCALE = 0.6; // speech rarely is louder; what is, is cut off

/**
 * @param {HTMLElement} el
 * @param {{nonce: string, onFailed: () => void}} options `onFailed`: there is no sound to draw
 */
export async function mountWaves(el, { nonce, onFailed }) {
  const WaveSurfer = await loadWavesurfer();
  const colours = themeColours(el);
  const channels = () =>
    ["listen", "speak"].map((name) => ({ waveColor: colours.css(name), progressColor: colours.css(name), height: LANE_PX }));
  const waves = WaveSurfer.create({
    container: el,
    height: LANE_PX,
    interact: false,
    cursorWidth: 0,
    hideScrollbar: true,
    barWidth: 2,
    barGap: 1,
    barRadius: 1,
    maxPeak: FULL_SCALE,
    cspNonce: nonce,
    splitChannels: channels(),
    peaks: [[0], [0]],
    duration: 1,
  });
  /** @type {import("./peak-source.js").PeakSource | null} */
  let source = null;
  /** @type {View} */
  let view = { fromS: 0, toS: 1 };
  let frame = 0;

  const draw = () => {
    frame = 0;
    if (!source) return;
    const lines = source.peaks(view).slice(0, 2);
    el.dataset.loudest = String(
      Math.max(...lines.map((line) => line.reduce((most, value) => Math.max(most, value), 0))).toFixed(2),
    );
    void waves.load(
      "",
      lines.map((line) => thinned(line)),
      view.toS - view.fromS,
    );
  };
  const request = () => {
    if (frame === 0) frame = requestAnimationFrame(draw);
  };
  const endTheme = onThemeChange(() => {
    waves.setOptions({ splitChannels: channels() });
    request();
  });

  return {
    /** @param {string} url of the stereo sound */
    open(url) {
      source?.close();
      source = openPeaks(url, request, onFailed);
      source.look(view);
    },
    /** @param {View} wanted */
    update(wanted) {
      view = wanted;
      source?.look(view);
      request();
    },
    close() {
      cancelAnimationFrame(frame);
      endTheme();
      source?.close();
      colours.close();
      waves.destroy();
    },
  };
}

/** @param {Float32Array} line */
function thinned(line) {
  const step = Math.ceil(line.length / MOST_PEAKS);
  if (step === 1) return line;
  const count = Math.ceil(line.length / step);
  const thin = new Float32Array(count);
  for (let index = 0; index < line.length; index += 1) {
    const slot = Math.floor(index / step);
    thin[slot] = Math.max(thin[slot], line[index]);
  }
  return thin;
}
