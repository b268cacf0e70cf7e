// @ts-check
/** Notes of the live pages: that no call can begin yet, what the demonstration model is, why headphones help. */

import { t } from "../../shared/texts.js";
import { html, icon, iconButton, mountView } from "../../shared/lit.js";
import { remember, remembered } from "../../shared/memory.js";
import { mountNotice } from "../../shared/notice.js";
import { createQueueChimes, createQueueCountdown, placeText, waitText } from "../lib/queue-chimes.js";

/** @import { Page, StatusReport } from "../../shared/page.js" */
/** @import { QueuePlace } from "../../shared/server-messages.js" */
/** @import { CountdownView } from "../lib/queue-chimes.js" */

const DISMISSED_KEY = "live_headphones_advice";
const MOST_SUGGESTIONS = 5;

/** @param {HTMLElement} el @param {Page} page @returns {{modelName: () => string}} */
export function mountModelNote(el, page) {
  /** @type {Http.ModelFacts | null} */
  let model = null;
  const draw = mountView(el, () => {
    const { kind, name = "", try_saying: sentences = [] } = model ?? {};
    const isTrained = kind === "nano" || kind === "cascade";
    const quoted = (sentences ?? []).slice(0, MOST_SUGGESTIONS).map((sentence) => t("home.quoted", { sentence }));
    return html`${icon("sparkle")}
      <p>${isTrained ? `${t(`live.demo_${kind}`, { name })} ${quoted.join(" ")}` : t("live.demo_model")}</p>`;
  });
  page.onStatus(({ status }) => {
    model = status?.model ?? null;
    draw();
    el.hidden = !model?.is_demonstration || model.kind === "fake"; // fixed replies are no noise
  });
  return { modelName: () => model?.name ?? "" };
}

/** @param {HTMLElement} el @param {Page} page */
export function mountServiceNote(el, page) {
  const notice = mountNotice(el);
  page.onStatus((report) => {
    const code = problemOfStatus(report);
    if (code === (el.dataset.code ?? null)) return;
    if (code) notice.show(code, { kind: "caution" });
    else notice.clear();
  });
}

/** Null if it could. @param {StatusReport} report @returns {string | null} code of a text `problem.CODE` */
export function problemOfStatus({ status, isReached }) {
  if (!isReached || !status) return "offline";
  if (status.idle_workers + status.busy_workers > 0) return null;
  return status.loading_workers > 0 ? "worker_loading" : "no_worker";
}

/** Headphones keep the model from hearing itself. Shown until dismissed. @param {HTMLElement} el */
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

// The place in the line: position, a countdown, sounds that can be muted, and a way out.

const MUTED_KEY = "minicpmo_chimes_muted";

/** @param {HTMLElement} el @param {{onCancel?: () => void}} [options] without `onCancel` the way out is elsewhere on the page */
export function mountQueueBanner(el, { onCancel } = {}) {
  const chimes = createQueueChimes({ makeContext: () => new AudioContext(), isMuted: remembered(MUTED_KEY) === "true" });
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
        ${iconButton(isMuted ? "bell-off" : "bell", t(isMuted ? "queue.sounds_off" : "queue.sounds_on"), toggleMute, {
          ...{ label: t("queue.mute"), style: "", isPressed: isMuted },
        })}
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
