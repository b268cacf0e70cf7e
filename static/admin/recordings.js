// @ts-check
/** Recordings: what is kept, how large and how old; open, download, delete, clean up. */

import { h, icon, on, setText } from "../shared/dom.js";
import { formatBytes, formatDateTime, formatNumber } from "../shared/formats.js";
import { onLangChange, t, tn } from "../shared/i18n.js";
import { actionButton } from "./action-button.js";
import { mountCleanup } from "./cleanup.js";
import { mountTable } from "./table.js";
import { ago, kindName, said, span } from "./words.js";

/** @typedef {import("./table.js").TableColumn<Http.ListedRecording>} Column */

const PAGE_SIZE = 25;
const ORDERS = ["newest", "oldest", "largest", "longest"];

/** @param {{session_retention_days: number, max_storage_gb: number}} limits */
function keptText({ session_retention_days: days, max_storage_gb: room }) {
  const rules = [];
  if (days > 0) rules.push(tn("admin.recordings_days", days));
  if (room > 0) rules.push(t("admin.recordings_room", { n: formatNumber(room) }));
  return rules.join(" ") || t("admin.recordings_for_ever");
}

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api, page }) {
  const off = said("p", "admin.recording_off", { class: "notice", hidden: page.defaults?.recording_enabled !== false });
  const kept = h("p", { class: "soft", id: "recordings-kept" });
  const sum = h("p", { class: "soft" });
  const order = h(
    "select",
    { id: "recording-order" },
    ORDERS.map((each) => said("option", `admin.order_${each}`, { value: each })),
  );
  const tools = h(
    "div",
    { class: "spread" },
    sum,
    h("div", { class: "row" }, said("label", "admin.order", { for: "recording-order", class: "label" }), h("div", {}, order)),
  );
  const place = h("div", { class: "admin-wide" });
  const refresh = async () => {
    const found = /** @type {Http.RecordingPage} */ (
      await api.get(`/api/admin/recordings?offset=${at.offset}&limit=${PAGE_SIZE}&sort=${order.value}`)
    );
    if (found.recordings.length === 0 && at.offset > 0 && found.total > 0) {
      at.offset = Math.floor((found.total - 1) / PAGE_SIZE) * PAGE_SIZE; // the last page was deleted
      return refresh();
    }
    at.found = found;
    draw();
  };
  const quietly = () => refresh().catch(() => {}); // the next look tells
  const pager = mountPager((step) => {
    at.offset += step * PAGE_SIZE;
    void quietly();
  });
  const cleanup = mountCleanup(api, quietly);
  el.append(off, kept, tools, place, pager.node, cleanup);

  const at = { offset: 0, found: /** @type {Http.RecordingPage | null} */ (null) };
  const table = mountTable(place, {
    captionKey: "admin.recordings",
    emptyKey: "admin.recordings_empty",
    keyOf: (/** @type {Http.ListedRecording} */ recording) => recording.id,
    columns: columnsOf((id) => api.send("DELETE", `/api/sessions/${encodeURIComponent(id)}`), quietly),
  });
  const draw = () => {
    setText(kept, page.defaults ? keptText(page.defaults.recording) : "");
    if (!at.found) return;
    const { total, total_bytes: bytes, recordings } = at.found;
    setText(sum, tn("admin.recordings_sum", total, { size: formatBytes(bytes) }));
    table.update(recordings);
    pager.draw(at.offset, recordings.length, total);
  };
  on(order, "change", () => {
    at.offset = 0;
    void quietly();
  });
  onLangChange(draw);
  return { refresh };
}

/**
 * @param {(id: string) => Promise<unknown>} remove
 * @param {() => Promise<unknown>} after
 * @returns {Column[]}
 */
function columnsOf(remove, after) {
  return [
    { labelKey: "admin.col_when", mount: whenCell },
    { labelKey: "admin.col_kind", text: ({ app_type: kind }) => kindName(kind) },
    { labelKey: "admin.col_length", look: "number", text: ({ duration_s: s }) => span(s) },
    { labelKey: "admin.col_size", look: "number", text: ({ bytes }) => formatBytes(bytes) },
    { labelKey: "admin.col_state", look: "small", text: stateWords },
    { labelKey: "admin.col_actions", look: "admin-actions", mount: (cell, current) => actionsCell(cell, current, remove, after) },
  ];
}

/** @param {HTMLElement} cell @returns {(recording: Http.ListedRecording) => void} */
function whenCell(cell) {
  const when = h("span");
  const age = h("span", { class: "small soft" });
  cell.append(h("div", { class: "admin-when" }, when, age));
  return ({ created_at: at }) => {
    setText(when, formatDateTime(at));
    setText(age, ago(at));
  };
}

/** @param {Http.ListedRecording} recording */
function stateWords({ is_running: isRunning, status, problem, has_comment: hasComment, has_upload: hasUpload }) {
  const state = isRunning ? t("admin.rec_running") : status === "ready" ? t("admin.rec_ready") : t("admin.rec_unfinished");
  return [state, problem, hasComment && t("admin.rec_comment"), hasUpload && t("admin.rec_upload")].filter(Boolean).join(" · ");
}

/**
 * @param {HTMLElement} cell
 * @param {() => Http.ListedRecording} current
 * @param {(id: string) => Promise<unknown>} remove
 * @param {() => Promise<unknown>} after
 * @returns {(recording: Http.ListedRecording) => void}
 */
function actionsCell(cell, current, remove, after) {
  const open = h("a", { class: "button button-icon", target: "_blank", rel: "noopener" }, icon("eye"));
  const download = h("a", { class: "button button-icon", download: "" }, icon("download"));
  const button = actionButton({
    icon: "trash",
    kind: "danger",
    isIconOnly: true,
    deed: () => {
      const recording = current();
      return {
        about: "recording",
        question: () => ({
          title: t("admin.delete_ask", { name: nameOf(recording) }),
          text: t("admin.recording_delete_text", { id: recording.id, size: formatBytes(recording.bytes) }),
          confirm: t("common.delete"),
        }),
        run: () => remove(recording.id),
        done: () => t("admin.deleted", { name: nameOf(recording) }),
        after,
      };
    },
  });
  cell.append(h("div", { class: "row admin-buttons" }, open, download, button.node));
  return (recording) => {
    const name = nameOf(recording);
    const id = encodeURIComponent(recording.id);
    label(open, `/s/${id}`, t("admin.open"), name);
    label(download, `/api/sessions/${id}/download`, t("common.download"), name);
    button.draw({ label: t("common.delete"), name, isPossible: !recording.is_running });
  };
}

/**
 * @param {HTMLAnchorElement} link
 * @param {string} href
 * @param {string} words
 * @param {string} name
 */
function label(link, href, words, name) {
  link.setAttribute("href", href);
  link.setAttribute("aria-label", `${words}: ${name}`);
  link.title = words;
}

/** @param {Http.ListedRecording} recording */
function nameOf({ app_type: kind, created_at: at }) {
  return `${kindName(kind)}, ${formatDateTime(at)}`;
}

/** @param {(step: number) => void} onStep */
function mountPager(onStep) {
  const words = h("span", { class: "small soft number" });
  const back = h("button", { type: "button", class: "button button-icon", id: "page-back" }, icon("back"));
  const next = h("button", { type: "button", class: "button button-icon", id: "page-next" }, icon("forward"));
  const node = h("nav", { class: "row", hidden: true }, back, next, words); // until there are pages to name
  const turn = (/** @type {HTMLElement} */ button, /** @type {number} */ step) =>
    on(button, "click", () => button.getAttribute("aria-disabled") !== "true" && onStep(step));
  turn(back, -1);
  turn(next, 1);
  return {
    node,
    /**
     * @param {number} offset
     * @param {number} count
     * @param {number} total
     */
    draw(offset, count, total) {
      node.hidden = total <= PAGE_SIZE;
      node.setAttribute("aria-label", t("admin.pages"));
      back.setAttribute("aria-label", t("admin.page_back"));
      next.setAttribute("aria-label", t("admin.page_next"));
      back.setAttribute("aria-disabled", String(offset === 0));
      next.setAttribute("aria-disabled", String(offset + count >= total));
      setText(
        words,
        t("admin.page_of", { from: formatNumber(offset + 1), to: formatNumber(offset + count), all: formatNumber(total) }),
      );
    },
  };
}
