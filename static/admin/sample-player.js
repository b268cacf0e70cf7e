// @ts-check
/** Buttons that play a sound, one at a time. */

import { on } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { html, icon } from "../shared/lit.js";
import { toast } from "../shared/toast.js";
import { failureText } from "./words.js";

/** @param {() => void} draw */
export function makeSamplePlayer(draw) {
  const audio = new Audio();
  /** @type {string | null} */
  let playing = null;
  /** @param {string | null} key */
  const set = (key) => {
    playing = key;
    draw();
  };
  const stop = () => {
    audio.pause();
    set(null);
  };
  on(audio, "ended", stop);
  /** @param {string} key @param {() => Promise<string>} address */
  const press = async (key, address) => {
    if (playing === key) return stop();
    set(key);
    try {
      const source = await address();
      if (playing !== key) return;
      if (audio.src.startsWith("blob:")) URL.revokeObjectURL(audio.src);
      audio.src = source;
      await audio.play();
    } catch (error) {
      if (playing !== key) return; // another one was chosen meanwhile
      stop();
      toast(failureText(error, "listen"));
    }
  };
  return {
    stop,
    /**
     * @param {string} key of the sound
     * @param {string} name
     * @param {() => Promise<string>} address of the sound, asked for when it is to be played
     */
    button(key, name, address) {
      const label = t(playing === key ? "admin.listen_stop" : "admin.listen");
      return html`<button
        type="button"
        class="button button-icon admin-listen"
        aria-label="${label}: ${name}"
        title=${label}
        data-playing=${String(playing === key)}
        @click=${() => void press(key, address)}
      >
        ${icon(playing === key ? "stop" : "play")}
      </button>`;
    },
  };
}
