// @ts-check
/**
 * Notes of the live pages: that no call can begin yet, what the demonstration model is, why headphones help.
 */

import { fill, h, icon } from "../../shared/dom.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { mountNotice } from "../../shared/notice.js";

const DISMISSED_KEY = "live_headphones_advice";
const MOST_SUGGESTIONS = 5;

/**
 * Tells when the loaded model is a demonstration, and what the trained ones of these can be asked.
 *
 * @param {HTMLElement} el
 * @param {import("../../shared/page.js").Page} page
 * @returns {{modelName: () => string}}
 */
export function mountModelNote(el, page) {
  /** @type {Http.ModelFacts | null} */
  let model = null;
  const draw = () => {
    const { kind, name = "", try_saying: sentences = [] } = model ?? {};
    if (kind !== "nano" && kind !== "cascade") return fill(el, icon("sparkle"), h("p", {}, t("live.demo_model")));
    const quoted = sentences.slice(0, MOST_SUGGESTIONS).map((sentence) => t("home.quoted", { sentence }));
    fill(el, icon("sparkle"), h("p", {}, t(`live.demo_${kind}`, { name }), " ", quoted.join(" ")));
  };
  onLangChange(draw);
  draw();
  page.onStatus(({ status }) => {
    const given = status?.model ?? null;
    const isNew = JSON.stringify(given) !== JSON.stringify(model);
    model = given;
    if (isNew) draw();
    el.hidden = !model?.is_demonstration || model.kind === "fake"; // fixed replies are no noise
  });
  return { modelName: () => model?.name ?? "" };
}

/**
 * Tells before a call that it cannot begin yet: no worker is there, or the model is loading.
 *
 * @param {HTMLElement} el
 * @param {import("../../shared/page.js").Page} page
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

/**
 * Headphones keep the model from hearing itself. Shown until dismissed.
 *
 * @param {HTMLElement} el
 * @param {Storage | null} storage
 */
export function mountHeadphonesAdvice(el, storage) {
  if (isDismissed(storage)) return;
  const draw = () => {
    const dismiss = h("button", { type: "button", class: "button button-quiet push" }, t("live.advice_ok"));
    dismiss.addEventListener("click", () => {
      el.hidden = true;
      try {
        storage?.setItem(DISMISSED_KEY, "dismissed");
      } catch {
        // Storage may be forbidden; the advice then comes again.
      }
    });
    fill(el, icon("headphones"), h("p", {}, t("live.advice")), dismiss);
  };
  onLangChange(draw);
  draw();
  el.hidden = false;
}

/** @param {Storage | null} storage */
function isDismissed(storage) {
  try {
    return storage?.getItem(DISMISSED_KEY) === "dismissed";
  } catch {
    return false;
  }
}
