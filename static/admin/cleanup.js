// @ts-check
/** Cleaning recordings up: first what would go, then, if that is right, doing it. */

import { fill, h, on, setText } from "../shared/dom.js";
import { formatBytes, formatNumber } from "../shared/formats.js";
import { onLangChange, t, tn } from "../shared/i18n.js";
import { toast } from "../shared/toast.js";
import { act } from "./action-button.js";
import { isRefusal } from "./admin-api.js";
import { failureText, said } from "./words.js";

/** @typedef {{retention_days: number | null, max_storage_gb: number | null}} Wish */

const PATH = "/api/admin/cleanup";
const SHOWN = 50;
const BYTES_PER_MB = 1_000_000; // of the report

/**
 * @param {import("./admin-api.js").AdminApi} api
 * @param {() => Promise<unknown>} after
 * @returns {HTMLElement}
 */
export function mountCleanup(api, after) {
  const days = numberInput("cleanup-days");
  const room = numberInput("cleanup-room");
  const problem = h("p", { class: "field-error", role: "alert" });
  const look = said("button", "admin.cleanup_look", { type: "submit", class: "button button-primary" });
  const report = h("div", { class: "stack-tight", id: "cleanup-report", role: "status" });
  const go = h("button", { type: "button", class: "button button-danger", id: "cleanup-go", hidden: true });
  const form = h(
    "form",
    { class: "stack", novalidate: true },
    said("p", "admin.cleanup_lead", { class: "soft admin-read" }),
    h(
      "div",
      { class: "admin-fields" },
      field("admin.cleanup_days", "admin.cleanup_days_hint", days),
      field("admin.cleanup_room", "admin.cleanup_room_hint", room),
    ),
    problem,
    h("div", {}, look),
  );
  const panel = h(
    "details",
    { class: "panel", id: "cleanup" },
    said("summary", "admin.cleanup"),
    h("div", { class: "stack" }, form, report, go),
  );

  /** @type {{wish: Wish, report: Http.CleanupReport} | null} */
  let looked = null;
  const draw = () => {
    fill(report, looked ? reportNodes(looked.report) : []);
    const count = looked?.report.deleted ?? 0;
    go.hidden = count === 0;
    setText(go, tn("admin.cleanup_go", count));
  };
  const forget = () => {
    looked = null;
    setText(problem, "");
    draw();
  };
  on(form, "input", forget);
  on(form, "submit", async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    if (isWrong(days) || isWrong(room)) return setText(problem, t("admin.cleanup_wrong"));
    const wish = { retention_days: valueOf(days), max_storage_gb: valueOf(room) };
    try {
      looked = { wish, report: /** @type {Http.CleanupReport} */ (await api.send("POST", PATH, { ...wish, dry_run: true })) };
      draw();
    } catch (error) {
      if (!isRefusal(error)) toast(failureText(error, "cleanup"), { shownMs: 10_000 });
    }
  });
  on(go, "click", async () => {
    if (!looked) return;
    const { wish, report: before } = looked;
    /** @type {Http.CleanupReport | null} */
    let done = null;
    const isDone = await act({
      about: "cleanup",
      question: () => ({
        title: tn("admin.cleanup_ask", before.deleted),
        text: t("admin.cleanup_ask_text", { size: formatBytes(sizeOf(before)) }),
        confirm: tn("admin.cleanup_go", before.deleted),
      }),
      run: async () => {
        done = /** @type {Http.CleanupReport} */ (await api.send("POST", PATH, { ...wish, dry_run: false }));
      },
      done: () => tn("admin.cleaned", done?.deleted ?? 0),
      after,
    });
    if (isDone) forget();
  });
  onLangChange(draw);
  return panel;
}

/** @param {Http.CleanupReport} report */
function sizeOf({ sessions }) {
  return sessions.reduce((sum, { size_bytes: bytes }) => sum + bytes, 0);
}

/**
 * @param {Http.CleanupReport} report
 * @returns {HTMLElement[]}
 */
function reportNodes(report) {
  if (report.status === "skipped") return [h("p", {}, t("admin.cleanup_skipped"))];
  if (report.deleted === 0) return [h("p", {}, t("admin.cleanup_nothing", { n: formatNumber(report.scanned) }))];
  const lines = report.sessions
    .slice(0, SHOWN)
    .map(({ session_id: id, reason, size_bytes: bytes }) =>
      h("li", {}, h("span", { class: "mono" }, id), ` · ${t(`admin.reason_${reason}`)} · ${formatBytes(bytes)}`),
    );
  const left = report.sessions.length - SHOWN;
  const nodes = [
    h(
      "p",
      { class: "label" },
      tn("admin.cleanup_would", report.deleted, {
        size: formatBytes(sizeOf(report)),
        rest: formatNumber(report.remaining),
        room: formatBytes(report.remaining_size_mb * BYTES_PER_MB),
      }),
    ),
    h("ul", { class: "small admin-report" }, lines),
  ];
  if (left > 0) nodes.push(h("p", { class: "small soft" }, t("admin.and_more", { n: formatNumber(left) })));
  for (const { session_id: id, message } of report.errors)
    nodes.push(h("p", { class: "field-error" }, t("admin.cleanup_error", { id, text: message })));
  return nodes;
}

/** @param {string} id */
function numberInput(id) {
  return h("input", { type: "number", id, min: 0, step: "any", inputmode: "decimal", "aria-describedby": `${id}-hint` });
}

/**
 * @param {string} label
 * @param {string} hint
 * @param {HTMLInputElement} input
 */
function field(label, hint, input) {
  return h(
    "div",
    { class: "field" },
    said("label", label, { for: input.id }),
    input,
    said("p", hint, { class: "hint", id: `${input.id}-hint` }),
  );
}

/** @param {HTMLInputElement} input */
function isWrong(input) {
  return input.validity.badInput || (input.value !== "" && !(Number(input.value) > 0));
}

/** @param {HTMLInputElement} input */
function valueOf(input) {
  return input.value.trim() === "" ? null : Number(input.value);
}
