// @ts-check
/** Notes of the live pages: that no call can begin yet, what the demonstration model is, why headphones help. */

import { t } from "../../shared/i18n.js";
import { html, icon, mountView } from "../../shared/lit.js";
import { mountNotice } from "../../shared/notice.js";
import { remember, remembered } from "../../shared/memory.js";

/** @import { Page } from "../../shared/page.js" */

const DISMISSED_KEY = "live_headphones_advice";
const MOST_SUGGESTIONS = 5;

/**
 * Tells when the loaded model is a demonstration, and what the trained ones of these can be asked.
 * @param {HTMLElement} el
 * @param {Page} page
 * @returns {{modelName: () => string}}
 */
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

/**
 * Tells before a call that it cannot begin yet: no worker is there, or the model is loading.
 * @param {HTMLElement} el
 * @param {Page} page
 */
export function mountServiceNote(el, page) {
  const notice = mountNotice(el);
  page.onStatus(({ status, isReached }) => {
    const code = isReached ? serviceProblem(status) : "offline";
    if (code === el.dataset.code) return;
    if (code) notice.show(code, { kind: "caution" });
    else notice.clear();
  });
}

/** @param {Http.ServiceStatus | null} status */
function serviceProblem(status) {
  if (!status || status.idle_workers + status.busy_workers > 0) return undefined;
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
