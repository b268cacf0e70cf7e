// @ts-check
/**
 * A small player for one sound: play, seek, time. Plays through an audio element.
 */

import { fill, h, icon, on, setText } from "./dom.js";
import { formatClock } from "./formats.js";
import { onLangChange, t } from "./i18n.js";
import { encodeWav } from "./pcm.js";

const SEEK_STEP_S = 0.1;

/** Only one of them sounds at a time. @type {{stop: (() => void) | null}} */
const playing = { stop: null };

/**
 * @param {HTMLElement} el
 * @param {{label: () => string}} options `label` names what is played, for screen readers
 */
export function mountSoundPlayer(el, { label }) {
  const audio = new Audio();
  const play = h("button", { type: "button", class: "button button-icon sound-play" });
  const seek = h("input", { type: "range", min: 0, step: SEEK_STEP_S, value: 0 });
  const time = h("span", { class: "small soft number sound-time" });
  el.classList.add("sound-player");
  fill(el, play, seek, time);
  let lengthS = 0;
  let url = "";

  const draw = () => {
    const isPlaying = !audio.paused;
    fill(play, icon(isPlaying ? "pause" : "play"));
    play.setAttribute("aria-label", `${t(isPlaying ? "common.pause" : "common.play")}: ${label()}`);
    seek.setAttribute("aria-label", `${t("voice.seek")}: ${label()}`);
    seek.setAttribute("aria-valuetext", `${formatClock(audio.currentTime)} / ${formatClock(lengthS)}`);
    seek.value = String(audio.currentTime);
    setText(time, `${formatClock(audio.currentTime)} / ${formatClock(lengthS)}`);
  };
  const stop = () => audio.pause();
  const toggle = () => {
    if (!audio.paused) return stop();
    if (playing.stop !== stop) playing.stop?.();
    playing.stop = stop;
    audio.play().catch(draw); // refused or replaced meanwhile: the button shows that it does not play
  };
  const ends = [
    on(play, "click", toggle),
    on(seek, "input", () => {
      audio.currentTime = seek.valueAsNumber;
      draw();
    }),
    ...["play", "pause", "timeupdate", "ended"].map((type) => on(audio, type, draw)),
    onLangChange(draw),
  ];
  draw();

  return {
    /**
     * @param {Float32Array} samples mono
     * @param {number} rateHz
     */
    load(samples, rateHz) {
      audio.pause();
      URL.revokeObjectURL(url);
      url = URL.createObjectURL(new Blob([encodeWav(samples, rateHz)], { type: "audio/wav" }));
      audio.src = url;
      lengthS = samples.length / rateHz;
      seek.max = String(lengthS);
      draw();
    },
    stop,
    close() {
      audio.pause();
      audio.removeAttribute("src");
      URL.revokeObjectURL(url);
      if (playing.stop === stop) playing.stop = null;
      ends.forEach((end) => end());
    },
  };
}
