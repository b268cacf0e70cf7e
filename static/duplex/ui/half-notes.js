// @ts-check
/**
 * Problems of a call, in words: before the start what the server lacks, later what went wrong.
 */

import { t } from "../../shared/i18n.js";
import { mountNotice } from "../../shared/notice.js";

/** @typedef {import("../lib/live-problems.js").LiveProblem} LiveProblem */
/** @typedef {import("../lib/live-problems.js").NextStep} NextStep */
/** @typedef {import("../../shared/page.js").StatusReport} StatusReport */

/**
 * Says why a call could not start now; null if it could.
 *
 * @param {StatusReport} report
 * @returns {string | null} code of a text `problem.CODE`
 */
export function problemOfStatus({ status, isReached }) {
  if (!isReached || !status) return "offline";
  if (status.idle_workers + status.busy_workers > 0) return null;
  return status.loading_workers > 0 ? "worker_loading" : "no_worker";
}

/**
 * @param {{problem: HTMLElement, note: HTMLElement}} places `problem` ended or prevents the call,
 *   `note` does not
 * @param {Partial<Record<NextStep, () => void>>} run
 */
export function mountCallNotes(places, run) {
  const problem = mountNotice(places.problem);
  const note = mountNotice(places.note);
  let noteCode = "";
  let problemCode = "";

  /** @type {Partial<Record<NextStep, import("../../shared/notice.js").NoticeAction>>} */
  const actionsByStep = {
    retry: { label: () => t("common.retry"), run: run.restart },
    restart: { label: () => t("half.start_again"), run: run.restart },
    reconnect: { label: () => t("common.retry"), run: run.reconnect },
    home: { label: () => t("half.go_home"), href: "/" },
    check: { label: () => t("nav.check"), href: "/check" },
  };
  const clear = () => {
    problem.clear();
    note.clear();
    problemCode = "";
    noteCode = "";
  };
  return {
    /** @param {LiveProblem} found */
    show({ code, message, kind, steps }) {
      const actions = steps.flatMap((step) => actionsByStep[step] ?? []);
      if (kind === "caution" && actions.length === 0) {
        noteCode = code;
        note.show({ code, message }, { kind });
      } else {
        problemCode = code;
        problem.show({ code, message }, { kind, actions });
      }
    },
    /** @param {string} code is over */
    solve(code) {
      if (code === noteCode) note.clear();
      if (code === problemCode) problem.clear();
    },
    /**
     * Before the start: what the server lacks.
     *
     * @param {string | null} code
     */
    showStatus(code) {
      if (code === null) {
        if (isStatusCode(noteCode)) this.solve(noteCode);
      } else if (code !== noteCode) {
        this.show({ code, message: "", kind: "caution", steps: [] });
      }
    },
    clear,
  };
}

/** @param {string} code */
function isStatusCode(code) {
  return code === "offline" || code === "worker_loading" || code === "no_worker";
}
