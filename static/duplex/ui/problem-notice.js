// @ts-check
/**
 * Says what is wrong with a live call and offers the next step as a button.
 */

import { t } from "../../shared/i18n.js";
import { mountNotice } from "../../shared/notice.js";

/** @typedef {import("../lib/live-problems.js").LiveProblem} LiveProblem */
/** @typedef {import("../../shared/notice.js").NoticeAction} NoticeAction */

/**
 * @param {HTMLElement} el
 * @param {import("./live-call.js").LiveCall} call
 * @param {{restart: () => void, openCamera?: () => void, useFile?: () => void}} options
 */
export function mountProblemNotice(el, call, { restart, openCamera, useFile }) {
  const notice = mountNotice(el);
  /** @type {LiveProblem | null} */
  let shown = null;
  /** @type {Record<import("../lib/live-problems.js").NextStep, NoticeAction>} */
  const actions = {
    restart: { label: () => t("live.start_again"), run: restart },
    retry: { label: () => t("common.retry"), run: restart },
    reconnect: { label: () => t("live.reconnect"), run: () => void call.reopenSource() },
    home: { label: () => t("live.to_home"), href: "/" },
    check: { label: () => t("nav.check"), href: "/check" },
    camera: { label: () => t("omni.camera_again"), run: () => openCamera?.() },
    file: { label: () => t("omni.use_file"), run: () => useFile?.() },
    voice: { label: () => t("app.audio_duplex.title"), href: "/audio_duplex" },
  };
  const clear = () => {
    shown = null;
    notice.clear();
  };
  /** @param {LiveProblem} problem */
  const show = (problem) => {
    if (shown?.kind === "bad" && problem.kind !== "bad") return; // the worse one stays
    shown = problem;
    notice.show(problem, { kind: problem.kind, actions: problem.steps.map((step) => actions[step]) });
  };
  call.on("problem", show);
  call.on("solved", ({ code }) => {
    if (shown?.code === code) clear();
  });
  call.on("devices", ({ isStarting }) => {
    if (isStarting) clear();
  });
  return { show, clear };
}
