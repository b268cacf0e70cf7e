/** Notes of the live pages: server status, demonstration model, headphones; and the queue banner. */

import { problemOfStatus, t } from "../../shared/texts.js";
import { html, icon, iconButton, modelNote, mountNotice, mountView, nothing } from "../../shared/lit.js";
import { remember, remembered } from "../../shared/memory.js";
import { createQueueChimes, placeText, waitAfter, waitText } from "../lib/queue-chimes.js";

/** @import { Page } from "../../shared/page.js" */
/** @import { QueuePlace } from "../../shared/server-messages.js" */
/** @import { Wait } from "../lib/queue-chimes.js" */

const DISMISSED_KEY = "live_headphones_advice";

/**
 * @param {HTMLElement} el
 * @param {Page} page
 * @param {(sentence: string) => void} say a suggestion was pressed
 * @returns {{modelName: () => string}}
 */
export function mountModelNote(el, page, say) {
  /** @type {Http.ServiceStatus | null} */ let status = null;
  const chip = (/** @type {string} */ sentence) =>
    html`<button type="button" class="pill" @click=${() => say(sentence)}>${icon("speaker")}${sentence}</button>`;
  const draw = mountView(el, () => {
    const isShown = status?.model?.is_demonstration === true && status.model.kind !== "fake";
    el.hidden = !isShown;
    return status && isShown ? modelNote(status, { chip }) : nothing;
  });
  page.onStatus((report) => {
    status = report.status;
    draw();
  });
  return { modelName: () => status?.model?.name ?? "" };
}

export function mountServiceNote(/** @type {HTMLElement} */ el, /** @type {Page} */ page) {
  const notice = mountNotice(el);
  page.onStatus((report) => {
    const code = problemOfStatus(report);
    if (code === (el.dataset.code ?? null)) return;
    if (code) notice.show(code, { kind: "caution" });
    else notice.clear();
  });
}

/** Advice to use headphones, shown until dismissed. @param {HTMLElement} el */
export function mountHeadphonesAdvice(el) {
  if (remembered(DISMISSED_KEY) === "dismissed") return;
  const dismiss = () => {
    el.hidden = true;
    remember(DISMISSED_KEY, "dismissed");
  };
  mountView(
    el,
    () =>
      html`${icon("headphones")}
        <p>${t("live.advice")}</p>
        <button type="button" class="button button-quiet push" @click=${dismiss}>${t("live.advice_ok")}</button>`,
  );
  el.hidden = false;
}

// Queue banner: position, countdown, chimes that can be muted, and a cancel button.

const TICK_MS = 1_000;
const MUTED_KEY = "minicpmo_chimes_muted";

/** @param {HTMLElement} el @param {{onCancel?: () => void}} [options] without `onCancel` the cancel button is elsewhere on the page */
export function mountQueueBanner(el, { onCancel } = {}) {
  const chimes = createQueueChimes({ makeContext: () => new AudioContext(), isMuted: remembered(MUTED_KEY) === "true" });
  const { unlock, playTurn, playReady } = chimes;
  /** @type {Wait | null} */ let wait = null;
  /** @type {ReturnType<typeof setInterval> | undefined} */ let timer;
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
        <p class="queue-place" role="status">${wait && placeText(wait)}</p>
        <p class="queue-wait number">${wait && waitText(wait, performance.now())}</p>
      </div>
      <div class="row">
        ${iconButton(isMuted ? "bell-off" : "bell", t(isMuted ? "queue.sounds_off" : "queue.sounds_on"), toggleMute, {
          label: t("queue.mute"),
          style: "",
          isPressed: isMuted,
        })}
        <button type="button" class="button" ?hidden=${!onCancel} @click=${() => onCancel?.()}>${t("queue.cancel")}</button>
      </div>`;
  });

  return {
    unlock,
    playTurn,
    playReady,
    /** @param {QueuePlace | null} queuePlace null: no longer queued */
    update(queuePlace) {
      el.hidden = queuePlace === null;
      chimes.setPosition(queuePlace?.position ?? null);
      clearInterval(timer);
      wait = queuePlace && waitAfter(wait, queuePlace, performance.now());
      if (!wait) return;
      timer = setInterval(draw, TICK_MS);
      draw();
    },
  };
}
