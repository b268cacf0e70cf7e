// @ts-check
/** The place in the line: position, a countdown, sounds that can be muted, and a way out. */

import { formatClock, formatNumber } from "../../shared/formats.js";
import { t, tn } from "../../shared/i18n.js";
import { html, icon, mountView } from "../../shared/lit.js";
import { createQueueChimes, createQueueCountdown } from "../lib/queue-chimes.js";
import { remember, remembered } from "../../shared/memory.js";

/** @import { QueuePlace } from "../../shared/queue-place.js" */
/** @import { CountdownView } from "../lib/queue-chimes.js" */

const MUTED_KEY = "minicpmo_chimes_muted";

/** @param {HTMLElement} el @param {{onCancel?: () => void}} [options] without `onCancel` the way out is elsewhere on the page */
export function mountQueueBanner(el, { onCancel } = {}) {
  const chimes = createQueueChimes({ isMuted: remembered(MUTED_KEY) === "true" });
  /** @type {CountdownView | null} */
  let view = null;
  const countdown = createQueueCountdown((next) => {
    view = next;
    draw();
  });
  const toggleMute = () => {
    chimes.setMuted(!chimes.isMuted());
    remember(MUTED_KEY, String(chimes.isMuted()));
    draw();
  };
  el.classList.add("queue-banner");
  el.hidden = true;
  const draw = mountView(el, () => {
    const isMuted = chimes.isMuted();
    return html`<div class="queue-words">
        <p class="queue-place" role="status">${view && placeText(view)}</p>
        <p class="queue-wait number">${view && waitText(view)}</p>
      </div>
      <div class="row">
        <button
          type="button"
          class="button button-icon"
          aria-pressed=${String(isMuted)}
          aria-label=${t("queue.mute")}
          title=${t(isMuted ? "queue.sounds_off" : "queue.sounds_on")}
          @click=${toggleMute}
        >
          ${icon(isMuted ? "bell-off" : "bell")}
        </button>
        <button type="button" class="button" ?hidden=${!onCancel} @click=${() => onCancel?.()}>${t("queue.cancel")}</button>
      </div>`;
  });

  return {
    /** @param {QueuePlace | null} queuePlace null: it waits no more */
    update(queuePlace) {
      el.hidden = queuePlace === null;
      chimes.setPosition(queuePlace?.position ?? null);
      if (queuePlace) countdown.update(queuePlace);
      else countdown.stop();
    },
    /** Call it in a click, so that browsers allow sounds later. */
    unlock: () => chimes.unlock(),
    playTurn: () => chimes.playTurn(),
    playReady: () => chimes.playReady(),
  };
}

/** @param {CountdownView} view */
function placeText({ position, queueLength }) {
  if (position === 1) return t("queue.next");
  return t("queue.place", { position: formatNumber(position), length: formatNumber(Math.max(position, queueLength)) });
}

/** @param {CountdownView} view */
function waitText({ shownS, isOvertime, overtimeS }) {
  if (isOvertime) return t("queue.overtime", { time: formatClock(overtimeS) });
  return shownS < 60 ? tn("queue.seconds", shownS) : t("queue.wait", { time: formatClock(shownS) });
}
