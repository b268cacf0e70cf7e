/**
 * Clock of the replay: an audio element, or a silent clock without audio. Pure.
 *
 * Events: `change` on start, stop, seek and change of speed; `tick` in each frame while it runs.
 */

const MS_PER_S = 1_000;

export const SPEEDS = Object.freeze([0.5, 0.75, 1, 1.25, 1.5, 2]);

export class ReplayClock extends EventTarget {
  #audio;
  durationS;
  #atS = 0;
  speed = 1;
  isPlaying = false;
  hasSound = false;
  /** @type {number | null} */ #lastMs = null;
  #frame = 0;
  #requestFrame;

  /** @param {HTMLAudioElement} audio @param {number} durationS @param {(run: (nowMs: number) => void) => number} requestFrame */
  constructor(audio, durationS, requestFrame) {
    super();
    this.#audio = audio;
    this.durationS = durationS;
    this.#requestFrame = requestFrame;
    for (const type of ["play", "pause", "seeked", "ratechange"]) audio.addEventListener(type, () => this.#onMediaEvent());
    audio.addEventListener("ended", () => this.#end());
  }

  /** @param {string} url of the audio; fetched when it is first played */
  setSound(url) {
    const { atS } = this;
    this.pause();
    this.#audio.src = url;
    this.hasSound = true;
    this.seek(atS);
  }

  /** @returns {number} s */
  get atS() {
    const isAudible = this.hasSound && this.isPlaying && !this.#audio.seeking;
    return Math.min(isAudible ? this.#audio.currentTime : this.#atS, this.durationS);
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  play() {
    if (this.isPlaying) return;
    if (this.atS >= this.durationS) this.seek(0);
    this.isPlaying = true;
    this.#lastMs = null;
    if (this.hasSound) {
      this.#audio.currentTime = this.#atS;
      this.#audio.play().catch(() => this.pause()); // rejected or superseded: the button shows the state
    }
    this.#request();
    this.#changed();
  }

  pause() {
    if (!this.isPlaying) return;
    this.#atS = this.atS;
    this.isPlaying = false;
    if (this.hasSound) this.#audio.pause();
    this.#changed();
  }

  seek(/** @type {number} */ atS) {
    this.#atS = Math.min(Math.max(0, atS), this.durationS);
    if (this.hasSound && (this.isPlaying || this.#audio.readyState > 0)) this.#audio.currentTime = this.#atS;
    this.#changed();
  }

  setSpeed(/** @type {number} */ speed) {
    this.speed = speed;
    this.#audio.playbackRate = speed;
    this.#audio.defaultPlaybackRate = speed;
    this.#changed();
  }

  /** The audio element was used by its own controls or ended by itself. */
  #onMediaEvent() {
    const { paused, currentTime, ended } = this.#audio;
    if (!this.hasSound) return;
    if (this.isPlaying && paused && !ended) this.pause();
    else if (!this.isPlaying && !paused) {
      this.isPlaying = true;
      this.#request();
    }
    if (!this.isPlaying && this.#audio.readyState > 0 && Math.abs(currentTime - this.#atS) > 0.05) this.#atS = currentTime;
    this.#changed();
  }

  /** The audio may be slightly shorter than the plan. */
  #end() {
    this.pause();
    this.#atS = this.durationS;
    this.#changed();
  }

  #request() {
    if (this.#frame === 0) this.#frame = this.#requestFrame((nowMs) => this.#tick(nowMs));
  }

  #tick(/** @type {number} */ nowMs) {
    this.#frame = 0;
    if (!this.isPlaying) return;
    if (this.hasSound) this.#atS = this.atS;
    else if (this.#lastMs !== null) this.#atS += ((nowMs - this.#lastMs) / MS_PER_S) * this.speed;
    this.#lastMs = nowMs;
    if (this.#atS >= this.durationS) {
      this.#atS = this.durationS;
      this.pause();
    } else this.#request();
    this.dispatchEvent(new Event("tick"));
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
