// @ts-check
/** Plays answers while they come, and can be silenced; a recording or a clip silences it as well. */

import { on } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { html, icon, mountView } from "../shared/lit.js";

/** @import { AudioPlayer } from "../duplex/lib/audio-player.js" */
/** @import { ChatSession } from "./chat-session.js" */

/**
 * @param {HTMLButtonElement} hush shown while something sounds
 * @param {{session: ChatSession, delayMs: number, onSound: (isSounding: boolean) => void}} options
 */
export function mountAnswerVoice(hush, { session, delayMs, onSound }) {
  /** @type {AudioPlayer | null} */
  let player = null;
  /** @type {Promise<void> | null} */
  let opening = null;
  let isSounding = false;
  /** @param {boolean} next */
  const become = (next) => {
    if (isSounding === next) return;
    isSounding = next;
    hush.hidden = !next;
    onSound(next);
  };
  const open = async () => {
    const { AudioPlayer } = await import("../duplex/lib/audio-player.js"); // only who listens needs it
    const opened = new AudioPlayer({ delayMs });
    opened.addEventListener("rawaudio", () => become(true));
    opened.addEventListener("drained", () => become(false));
    opened.addEventListener("flushed", () => become(false));
    await opened.init();
    player = opened;
  };
  const silence = () => {
    player?.flush();
    become(false);
  };
  session.on("sound", ({ audioBase64, isFirst }) => {
    if (isFirst) player?.beginTurn(session.answerId);
    player?.playChunk(audioBase64);
  });
  session.on("answered", ({ message }) => {
    player?.endTurn();
    if (message.status === "stopped") silence();
  });
  session.on("opened", silence);
  on(hush, "click", silence);
  on(document, "soundplay", silence);
  mountView(hush, () => html`${icon("speaker")}${t("chat.hush")}`);
  hush.hidden = true;

  return {
    /** Call it in a click, so that browsers allow sound. */
    unlock() {
      opening ??= open().catch((error) => {
        opening = null; // the answer is there as a clip all the same
        console.info("No sound can be played.", error);
      });
      return opening;
    },
    silence,
  };
}
