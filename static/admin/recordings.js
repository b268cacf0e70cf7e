/** Recordings: list, open, download, delete, clean up. */

import { formatBytes, formatDateTime, formatNumber, t, tn } from "../shared/texts.js";
import { html, icon, textButton } from "../shared/lit.js";
import { act, actionButton, reportFailure, table, when } from "./words.js";
import { keptText, kindName, sizeOf, span, stateWords } from "./admin-texts.js";

/** @import { Context } from "../pages/admin.js" */

/** @typedef {{retention_days: number | null, max_storage_gb: number | null}} Wish */

const PAGE_SIZE = 25;
const ORDERS = ["newest", "oldest", "largest", "longest"];
const CLEANUP = "/api/admin/cleanup";
const SHOWN = 50; // entries of the preview
const BYTES_PER_MB = 1_000_000; // unit of the report

export function makeRecordings(/** @type {Context} */ { api, draw, page }) {
  const at = { offset: 0, order: ORDERS[0], found: /** @type {Http.RecordingPage | null} */ (null) };
  const refresh = async () => {
    const { offset, order } = at;
    const path = `/api/admin/recordings?offset=${offset}&limit=${PAGE_SIZE}&sort=${order}`;
    const found = /** @type {Http.RecordingPage} */ (await api.get(path));
    if (offset !== at.offset || order !== at.order) return; // another page was chosen meanwhile
    if (found.recordings.length === 0 && at.offset > 0 && found.total > 0) {
      at.offset = Math.floor((found.total - 1) / PAGE_SIZE) * PAGE_SIZE; // the last page was deleted
      return refresh();
    }
    at.found = found;
  };
  const quietly = () => refresh().then(draw, () => {}); // the next refresh reports it
  const cleanup = makeCleanup({ api, draw }, quietly);
  const sort = (/** @type {{target: HTMLSelectElement}} */ { target }) => {
    Object.assign(at, { offset: 0, order: target.value });
    void quietly();
  };
  const actions = (/** @type {Http.ListedRecording} */ recording) => {
    const name = `${kindName(recording.app_type)}, ${formatDateTime(recording.created_at)}`;
    const id = encodeURIComponent(recording.id);
    const [open, download] = [t("admin.open"), t("common.download")];
    const remove = actionButton({
      icon: "trash",
      label: t("common.delete"),
      name,
      about: "recording",
      after: quietly,
      isIconOnly: true,
      isPossible: !recording.is_running,
      question: () => ({
        title: t("admin.delete_ask", { name }),
        text: t("admin.recording_delete_text", { id: recording.id, size: formatBytes(recording.bytes) }),
      }),
      run: () => api.send("DELETE", `/api/sessions/${id}`),
      done: () => t("admin.deleted", { name }),
    });
    return html`<div class="row admin-buttons">
      <a class="button button-icon" target="_blank" rel="noopener" href="/s/${id}" aria-label="${open}: ${name}" title=${open}
        >${icon("eye")}</a
      >
      <a
        class="button button-icon"
        download
        href="/api/sessions/${id}/download"
        aria-label="${download}: ${name}"
        title=${download}
        >${icon("download")}</a
      >
      ${remove}
    </div>`;
  };
  const pager = () => {
    const { total, recordings } = at.found ?? { total: 0, recordings: [] };
    const end = at.offset + recordings.length;
    const turn = (/** @type {number} */ step) => () => {
      at.offset = Math.max(0, at.offset + step * PAGE_SIZE); // it may be pressed twice before the list is drawn
      void quietly();
    };
    const button = (/** @type {"back" | "next"} */ id, /** @type {boolean} */ isPossible) =>
      textButton(icon(id === "back" ? "back" : "forward"), turn(id === "back" ? -1 : 1), {
        id: `page-${id}`,
        label: t(`admin.page_${id}`),
        style: "button-icon",
        isIdle: !isPossible,
      });
    const words = { from: formatNumber(at.offset + 1), to: formatNumber(end), all: formatNumber(total) };
    return html`<nav class="row" ?hidden=${total <= PAGE_SIZE} aria-label=${t("admin.pages")}>
      ${button("back", at.offset > 0)} ${button("next", end < total)}<span class="small soft number"
        >${t("admin.page_of", words)}</span
      >
    </nav>`;
  };
  return {
    refresh,
    view: () =>
      html`<p class="notice" ?hidden=${page.defaults?.recording_enabled !== false}>${t("admin.recording_off")}</p>
        <p class="soft" id="recordings-kept">${page.defaults ? keptText(page.defaults.recording) : ""}</p>
        <div class="spread">
          <p class="soft">
            ${at.found ? tn("admin.recordings_sum", at.found.total, { size: formatBytes(at.found.total_bytes) }) : ""}
          </p>
          <div class="row">
            <label for="recording-order" class="label">${t("admin.order")}</label>
            <div>
              <select id="recording-order" @change=${sort}>
                ${ORDERS.map((each) => html`<option value=${each}>${t(`admin.order_${each}`)}</option>`)}
              </select>
            </div>
          </div>
        </div>
        <div class="admin-wide">
          ${table("recordings", at.found && at.found.recordings, ({ id }) => id, [
            { labelKey: "admin.col_when", cell: ({ created_at: time }) => when(time) },
            { labelKey: "admin.col_kind", cell: ({ app_type: kind }) => kindName(kind) },
            { labelKey: "admin.col_length", look: "number", cell: ({ duration_s: s }) => span(s) },
            { labelKey: "admin.col_size", look: "number", cell: ({ bytes }) => formatBytes(bytes) },
            { labelKey: "admin.col_state", look: "small", cell: stateWords },
            { labelKey: "admin.col_actions", look: "admin-actions", cell: actions },
          ])}
        </div>
        ${pager()} ${cleanup()}`,
  };
}

/** Clean-up: preview, then delete. @param {Pick<Context, "api" | "draw">} context @param {() => Promise<unknown>} after */
function makeCleanup({ api, draw }, after) {
  /** @type {{wish: Wish, report: Http.CleanupReport} | null} */ let looked = null;
  let problem = "";
  const forget = () => {
    looked = null;
    problem = "";
    draw();
  };
  const look = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const [days, room] = ["cleanup-days", "cleanup-room"].map(
      (id) => /** @type {HTMLInputElement} */ (form.elements.namedItem(id)),
    );
    problem = isWrong(days) || isWrong(room) ? t("admin.cleanup_wrong") : "";
    draw();
    if (problem) return;
    const wish = { retention_days: valueOf(days), max_storage_gb: valueOf(room) };
    try {
      looked = { wish, report: /** @type {Http.CleanupReport} */ (await api.send("POST", CLEANUP, { ...wish, dry_run: true })) };
      draw();
    } catch (error) {
      reportFailure(error, "cleanup");
    }
  };
  const clean = async () => {
    if (!looked) return;
    const { wish, report } = looked;
    let count = 0;
    const isDone = await act({
      about: "cleanup",
      question: () => ({
        title: tn("admin.cleanup_ask", report.deleted),
        text: t("admin.cleanup_ask_text", { size: formatBytes(sizeOf(report)) }),
        confirm: tn("admin.cleanup_go", report.deleted),
      }),
      run: async () => {
        const done = /** @type {Http.CleanupReport} */ (await api.send("POST", CLEANUP, { ...wish, dry_run: false }));
        count = done.deleted;
      },
      done: () => tn("admin.cleaned", count),
      after,
    });
    if (isDone) forget();
  };
  const field = (/** @type {"days" | "room"} */ of) =>
    html`<div class="field">
      <label for="cleanup-${of}">${t(`admin.cleanup_${of}`)}</label>
      <input type="number" id="cleanup-${of}" min="0" step="any" inputmode="decimal" aria-describedby="cleanup-${of}-hint" />
      <p class="hint" id="cleanup-${of}-hint">${t(`admin.cleanup_${of}_hint`)}</p>
    </div>`;
  return () => {
    const count = looked?.report.deleted ?? 0;
    return html`<details class="panel" id="cleanup">
      <summary>${t("admin.cleanup")}</summary>
      <div class="stack">
        <form class="stack" novalidate @input=${forget} @submit=${look}>
          <p class="soft admin-read">${t("admin.cleanup_lead")}</p>
          <div class="admin-fields">${field("days")} ${field("room")}</div>
          <p class="field-error" role="alert">${problem}</p>
          <div><button type="submit" class="button button-primary">${t("admin.cleanup_look")}</button></div>
        </form>
        <div class="stack-tight" id="cleanup-report" role="status">${looked ? reportView(looked.report) : ""}</div>
        <button type="button" class="button button-danger" id="cleanup-go" ?hidden=${count === 0} @click=${clean}>
          ${tn("admin.cleanup_go", count)}
        </button>
      </div>
    </details>`;
  };
}

function reportView(/** @type {Http.CleanupReport} */ report) {
  if (report.status === "skipped") return html`<p>${t("admin.cleanup_skipped")}</p>`;
  if (report.deleted === 0) return html`<p>${t("admin.cleanup_nothing", { n: formatNumber(report.scanned) })}</p>`;
  const sizes = {
    size: formatBytes(sizeOf(report)),
    rest: formatNumber(report.remaining),
    room: formatBytes(report.remaining_size_mb * BYTES_PER_MB),
  };
  const left = report.sessions.length - SHOWN;
  const shown = report.sessions.slice(0, SHOWN);
  return html`<p class="label">${tn("admin.cleanup_would", report.deleted, sizes)}</p>
    <ul class="small admin-report">
      ${shown.map(
        ({ session_id: id, reason, size_bytes: bytes }) =>
          html`<li><span class="mono">${id}</span> · ${t(`admin.reason_${reason}`)} · ${formatBytes(bytes)}</li>`,
      )}
    </ul>
    ${left > 0 ? html`<p class="small soft">${t("admin.and_more", { n: formatNumber(left) })}</p>` : ""}
    ${report.errors.map(
      ({ session_id: id, message }) => html`<p class="field-error">${t("admin.cleanup_error", { id, text: message })}</p>`,
    )}`;
}

/** @param {HTMLInputElement} input */
const isWrong = (input) => input.validity.badInput || (input.value !== "" && !(Number(input.value) > 0));

const valueOf = (/** @type {HTMLInputElement} */ input) => (input.value.trim() === "" ? null : Number(input.value));
