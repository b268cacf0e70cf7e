// @ts-check
/**
 * The small light in the bar: is the server there, is somebody free, how many wait.
 */

import { fill, h, setText } from "./dom.js";
import { onLangChange, t, tn } from "./i18n.js";

/** @typedef {import("./status-source.js").StatusReport} StatusReport */

/**
 * @param {StatusReport} report
 * @returns {{kind: "good" | "caution" | "bad", text: string}}
 */
export function describeHealth({ status, isReached }) {
  if (!isReached || !status) return { kind: "bad", text: t("health.offline") };
  if (status.is_intake_paused) return { kind: "caution", text: t("health.paused") };
  if (status.queue_length > 0) return { kind: "caution", text: tn("health.waiting", status.queue_length) };
  if (status.free_slots > 0) return { kind: "good", text: t("health.ready") };
  if (status.loading_workers > 0) return { kind: "caution", text: t("health.loading") };
  if (status.busy_workers > 0) return { kind: "caution", text: t("health.busy") };
  return { kind: "bad", text: t("health.no_worker") };
}

/**
 * @param {HTMLElement} el
 * @returns {{update: (report: StatusReport) => void}}
 */
export function mountHealthBadge(el) {
  const text = h("span", { class: "health-text" });
  el.classList.add("badge", "health-badge");
  el.setAttribute("role", "status");
  fill(el, h("span", { class: "dot" }), text);
  /** @type {StatusReport | null} */
  let latest = null;
  const draw = () => {
    const { kind, text: words } = latest ? describeHealth(latest) : { kind: "", text: t("health.asking") };
    el.dataset.kind = kind;
    el.title = words;
    setText(text, words);
  };
  onLangChange(draw);
  draw();
  return {
    update(report) {
      latest = report;
      draw();
    },
  };
}
