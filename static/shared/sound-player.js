/**
 * An audio player: play, seek, time, download. The file is created on demand. Only one player sounds at a time: each
 * dispatches a bubbling `soundplay` when it starts, and `pausesounds` on the document pauses all.
 */

import { html, icon, iconButton, live, mountView, nothing, on } from "./lit.js";
import { formatClock, t } from "./texts.js";

const SEEK_STEP_S = 0.1;

/**
 * @typedef {Object} Sound
 * @property {() => Blob} file
 * @property {number} durationS
 * @property {() => string} label names it for screen readers
 * @property {string} [downloadName] omitted: no download
 *
 * @typedef {{node: HTMLElement, play: () => void, pause: () => void, close: () => void}} SoundPlayer
 */

export function makeSoundPlayer(/** @type {Sound} */ { file, durationS, label, downloadName }) {
  const node = document.createElement("div");
  node.className = "sound-player";
  /** @type {HTMLAudioElement | null} */ let audio = null;
  let url = "";
  const source = () => (url ||= URL.createObjectURL(file()));
  const opened = () => {
    if (audio) return audio;
    audio = new Audio(source());
    for (const type of ["play", "pause", "timeupdate", "ended"]) on(audio, type, draw);
    return audio;
  };
  const pause = () => audio?.pause();
  const play = () => {
    node.dispatchEvent(new CustomEvent("soundplay", { bubbles: true }));
    opened().play().catch(draw); // rejected or superseded: the button shows the state
  };
  const seek = (/** @type {{target: HTMLInputElement}} */ { target }) => {
    opened().currentTime = target.valueAsNumber;
    draw();
  };
  /** The file is created just before the browser follows the link. @param {{currentTarget: HTMLAnchorElement}} event */
  const fetchFile = ({ currentTarget }) => void (currentTarget.href = source());
  const download = () =>
    html`<a
      class="button button-quiet button-icon"
      download=${downloadName}
      href="#"
      aria-label="${t("common.download")}: ${label()}"
      title=${t("common.download")}
      @pointerdown=${fetchFile}
      @keydown=${fetchFile}
      @click=${fetchFile}
      >${icon("download")}</a
    >`;
  const draw = mountView(node, () => {
    const isPlaying = audio !== null && !audio.paused;
    const atS = audio?.currentTime ?? 0;
    const time = `${formatClock(atS)} / ${formatClock(Math.ceil(durationS))}`; // a sound never lasts 0:00
    const words = t(isPlaying ? "common.pause" : "common.play");
    return html`${iconButton(isPlaying ? "pause" : "play", words, () => (isPlaying ? pause() : play()), {
        label: `${words}: ${label()}`,
        style: "button-quiet sound-play",
      })}<input
        type="range"
        min="0"
        max=${durationS}
        step=${SEEK_STEP_S}
        .value=${live(String(atS))}
        aria-label="${t("voice.seek")}: ${label()}"
        aria-valuetext=${time}
        @input=${seek}
      /><span class="small soft number sound-time">${time}</span>${downloadName ? download() : nothing}`;
  });
  const ends = [
    on(document, "pausesounds", pause),
    on(document, "soundplay", ({ target }) => {
      if (target !== node) pause();
    }),
    draw.close,
  ];

  return {
    node,
    play,
    pause,
    close() {
      pause();
      audio?.removeAttribute("src");
      if (url) URL.revokeObjectURL(url);
      ends.forEach((end) => end());
    },
  };
}
