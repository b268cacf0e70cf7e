// @ts-check
/**
 * A player for one sound in a message: play, seek, time, download. Its file is made when first needed.
 * Sends `clipplay` upwards when it begins.
 */

import { fill, h, icon, on, setText } from "../shared/dom.js";
import { formatClock } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";

const SEEK_STEP_S = 0.1;

/** Only one sounds at a time. @type {{pause: (() => void) | null}} */
const sounding = { pause: null };

/** Silences whatever clip sounds now. */
export function pauseClips() {
  sounding.pause?.();
}

/**
 * @typedef {Object} Clip
 * @property {() => Blob} file
 * @property {number} durationS
 * @property {() => string} label names it for screen readers
 * @property {string} [downloadName] without it there is no download
 */

/**
 * @param {Clip} clip
 * @returns {{node: HTMLElement, play: () => void, close: () => void}}
 */
export function makeClipPlayer({ file, durationS, label, downloadName }) {
  /** @type {HTMLAudioElement | null} */
  let audio = null;
  let url = "";
  const toggle = h("button", { type: "button", class: "button button-quiet button-icon clip-play" });
  const seek = h("input", { type: "range", class: "clip-seek", min: 0, max: durationS, step: SEEK_STEP_S, value: 0 });
  const time = h("span", { class: "small number clip-time" });
  const download = h(
    "a",
    { class: "button button-quiet button-icon clip-download", download: downloadName, href: "#" },
    icon("download"),
  );
  const node = h("div", { class: "clip" }, toggle, seek, time, downloadName ? download : null);

  const length = () => formatClock(Math.ceil(durationS)); // a sound never lasts 0:00
  const draw = () => {
    const isPlaying = audio !== null && !audio.paused;
    const atS = audio?.currentTime ?? 0;
    fill(toggle, icon(isPlaying ? "pause" : "play"));
    toggle.setAttribute("aria-label", `${t(isPlaying ? "common.pause" : "common.play")}: ${label()}`);
    seek.setAttribute("aria-label", t("chat.seek", { name: label() }));
    seek.setAttribute("aria-valuetext", `${formatClock(atS)} / ${length()}`);
    download.setAttribute("aria-label", `${t("common.download")}: ${label()}`);
    download.title = t("common.download");
    seek.value = String(atS);
    setText(time, `${formatClock(atS)} / ${length()}`);
  };
  const source = () => {
    url ||= URL.createObjectURL(file());
    return url;
  };
  const pause = () => audio?.pause();
  const opened = () => {
    if (audio) return audio;
    audio = new Audio(source());
    for (const type of ["play", "pause", "timeupdate", "ended"]) on(audio, type, draw);
    return audio;
  };
  const play = () => {
    if (sounding.pause !== pause) sounding.pause?.();
    sounding.pause = pause;
    node.dispatchEvent(new CustomEvent("clipplay", { bubbles: true }));
    opened().play().catch(draw); // refused or replaced: the button shows that it does not play
  };
  const ends = [
    on(toggle, "click", () => (audio && !audio.paused ? pause() : play())),
    on(seek, "input", () => {
      opened().currentTime = seek.valueAsNumber;
      draw();
    }),
    // The file is made at the last moment, before the browser follows the link.
    ...["pointerdown", "keydown", "click"].map((type) => on(download, type, () => void (download.href = source()))),
    onLangChange(draw),
  ];
  draw();

  return {
    node,
    play,
    close() {
      pause();
      if (sounding.pause === pause) sounding.pause = null;
      audio?.removeAttribute("src");
      if (url) URL.revokeObjectURL(url);
      ends.forEach((end) => end());
    },
  };
}
