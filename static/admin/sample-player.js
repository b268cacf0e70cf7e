// @ts-check
/** Buttons that play a sound, one at a time. */

import { fill, h, icon, on } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { toast } from "../shared/toast.js";
import { failureText } from "./words.js";

/** @typedef {{node: HTMLButtonElement, draw: (name: string) => void, close: () => void}} ListenButton */

/** @returns {{button: (address: () => Promise<string>) => ListenButton, stop: () => void}} */
export function makeSamplePlayer() {
  const audio = new Audio();
  /** @type {ListenButton | null} */
  let playing = null;
  /** @type {Map<ListenButton, string>} */
  const names = new Map();
  const redraw = () => {
    for (const [button, name] of names) button.draw(name);
  };
  const stop = () => {
    audio.pause();
    playing = null;
    redraw();
  };
  on(audio, "ended", stop);

  /** @param {() => Promise<string>} address of the sound, asked for when it is to be played */
  const button = (address) => {
    const node = h("button", { type: "button", class: "button button-icon admin-listen" });
    /** @type {ListenButton} */
    const me = {
      node,
      draw(name) {
        names.set(me, name);
        const isPlaying = playing === me;
        fill(node, icon(isPlaying ? "stop" : "play"));
        const label = t(isPlaying ? "admin.listen_stop" : "admin.listen");
        node.setAttribute("aria-label", `${label}: ${name}`);
        node.title = label;
        node.dataset.playing = String(isPlaying);
      },
      close() {
        if (playing === me) stop();
        names.delete(me);
      },
    };
    on(node, "click", async () => {
      if (playing === me) return stop();
      playing = me;
      redraw();
      try {
        const source = await address();
        if (playing !== me) return;
        if (audio.src.startsWith("blob:")) URL.revokeObjectURL(audio.src);
        audio.src = source;
        await audio.play();
      } catch (error) {
        if (playing !== me) return; // another one was chosen meanwhile
        stop();
        toast(failureText(error, "listen"));
      }
    });
    return me;
  };
  return { button, stop };
}
