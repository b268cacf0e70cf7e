// @ts-check
/**
 * After a conversation: add a comment and the browser's own recording, and get the link to its replay.
 */

import { sendJson } from "./api.js";
import { mountCommentField } from "./comment-field.js";
import { fill, h, icon, on, setText } from "./dom.js";
import { formatBytes, formatNumber } from "./formats.js";
import { onLangChange, t } from "./i18n.js";
import { mountNotice } from "./notice.js";
import { ownerHeaders } from "./own-recordings.js";
import { addRecent } from "./recent-sessions.js";
import { sendFile } from "./send-file.js";
import { serverDefaults } from "./server-defaults.js";
import { linkOf, mountShareLink } from "./share-link.js";
import { MAX_UPLOAD_BYTES, uploadProblem, uploadType } from "./share-rules.js";

const ID_BASE = 36;

/**
 * @typedef {{blob: Blob, fileName: string}} BrowserRecording
 *
 * @typedef {Object} ShareSubject
 * @property {string | null} recordingId of the server; null if it keeps none
 * @property {string} appType
 * @property {() => Promise<BrowserRecording | null>} [getBrowserRecording] what the browser itself recorded
 *
 * @typedef {Object} SaveShare
 * @property {(change: Partial<ShareSubject>) => void} update another recording; what was written goes
 * @property {() => void} close
 */

/**
 * @typedef {Object} State
 * @property {ShareSubject} subject
 * @property {BrowserRecording | null} recording
 * @property {Blob | null} sent
 * @property {AbortController | null} sending
 * @property {"open" | "sending" | "shared"} phase
 * @property {number} maxBytes
 */

/**
 * @param {HTMLElement} el
 * @param {ShareSubject} subject
 * @returns {SaveShare}
 */
export function mountSaveShare(el, subject) {
  const parts = makeParts();
  /** @type {State} */
  const state = { subject, recording: null, sent: null, sending: null, phase: "open", maxBytes: MAX_UPLOAD_BYTES };
  const draw = () => drawParts(parts, state);
  const look = async () => {
    const asked = state.subject;
    const found = (await asked.getBrowserRecording?.().catch(() => null)) ?? null;
    if (asked !== state.subject) return;
    state.recording = found;
    parts.withRecording.checked = found !== null && uploadProblem(found.blob, state.maxBytes) === null;
    draw();
  };

  on(parts.go, "click", () => void share(state, parts, draw));
  on(parts.cancel, "click", () => state.sending?.abort());
  on(parts.withRecording, "change", draw);
  const off = onLangChange(draw);
  el.replaceChildren(parts.root);
  draw();
  void look();
  void uploadLimit().then((limit) => {
    state.maxBytes = limit;
    void look();
  });

  return {
    update(change) {
      state.sending?.abort();
      state.subject = { ...state.subject, ...change };
      Object.assign(state, { recording: null, sent: null, phase: "open" });
      parts.comment.value = "";
      parts.notice.clear();
      parts.link.update(null);
      draw();
      void look();
    },
    close() {
      state.sending?.abort();
      off();
      parts.comment.close();
      parts.link.close();
      parts.root.remove();
    },
  };
}

/**
 * Sends what is to be sent, then shows and copies the link.
 *
 * @param {State} state
 * @param {Parts} parts
 * @param {() => void} draw
 */
async function share(state, parts, draw) {
  const { subject, recording, sent } = state;
  const { recordingId, appType } = subject;
  if (state.phase === "sending" || !recordingId) return;
  const sending = new AbortController();
  const { signal } = sending;
  Object.assign(state, { phase: "sending", sending });
  parts.notice.clear();
  draw();
  /** @type {State["phase"]} */
  let phase = "open";
  try {
    const file = parts.withRecording.checked && recording && recording.blob !== sent ? recording : null;
    if (file) await sendRecording(recordingId, file, parts, signal);
    if (state.subject === subject) state.sent = file?.blob ?? sent;
    await sendJson(
      "POST",
      pathOf(recordingId, "comment"),
      { comment: parts.comment.value },
      { signal, headers: ownerHeaders(localStorage, recordingId) },
    );
    phase = "shared";
  } catch (error) {
    if (!signal.aborted) showProblem(parts, error);
  }
  if (state.subject !== subject) return; // another recording is shown meanwhile
  Object.assign(state, { phase, sending: null });
  draw();
  if (phase !== "shared") return;
  addRecent(localStorage, recordingId, appType);
  parts.link.update(linkOf(recordingId));
  await parts.link.copy();
}

/** @param {string} recordingId @param {string} what */
const pathOf = (recordingId, what) => `/api/sessions/${encodeURIComponent(recordingId)}/${what}`;

/** @returns {Promise<number>} the largest file the server takes, bytes */
async function uploadLimit() {
  return (await serverDefaults)?.limits.recording_upload_bytes ?? MAX_UPLOAD_BYTES;
}

/** @typedef {ReturnType<typeof makeParts>} Parts */

function makeParts() {
  const id = `share-${Math.random().toString(ID_BASE).slice(2)}`; // a page may have several
  const commentPlace = h("div");
  const linkPlace = h("div");
  const noticePlace = h("div");
  const progress = h("progress", { max: 1, value: 0 });
  const withRecording = h("input", { type: "checkbox" });
  const parts = {
    title: h("h3", { id: `${id}-title` }),
    intro: h("p", { class: "hint" }),
    withRecording,
    recordingText: h("span", { class: "number" }),
    uploadProblem: h("p", { class: "hint" }),
    go: h("button", { type: "button", class: "button button-primary", dataset: { action: "share" } }),
    cancel: h("button", { type: "button", class: "button", dataset: { action: "cancel-share" } }),
    progress,
    sentText: h("span", { class: "small soft number" }),
    status: h("p", { class: "visually-hidden", role: "status" }),
    comment: mountCommentField(commentPlace, { id: `${id}-comment` }),
    link: mountShareLink(linkPlace, { id: `${id}-link` }),
    notice: mountNotice(noticePlace),
  };
  const recordingRow = h("label", { class: "check" }, withRecording, parts.recordingText);
  const progressRow = h("div", { class: "share-progress" }, progress, parts.sentText, parts.cancel);
  const form = h(
    "div",
    { class: "stack-tight" },
    commentPlace,
    recordingRow,
    parts.uploadProblem,
    h("div", { class: "row" }, parts.go),
    progressRow,
  );
  const root = h(
    "section",
    { class: "save-share stack-tight", "aria-labelledby": `${id}-title` },
    parts.title,
    parts.intro,
    form,
    noticePlace,
    linkPlace,
    parts.status,
  );
  return { ...parts, root, form, recordingRow, progressRow };
}

/** @param {Parts} parts @param {State} state */
function drawParts(parts, { subject: { recordingId }, recording, phase, maxBytes }) {
  const isSending = phase === "sending";
  const problem = recording ? uploadProblem(recording.blob, maxBytes) : null;
  const willUpload = recording !== null && parts.withRecording.checked && problem === null;
  parts.root.dataset.phase = phase;
  setText(parts.title, t("share.title"));
  setText(parts.intro, t(recordingId ? "share.intro" : "share.not_recorded"));
  parts.form.hidden = recordingId === null;
  parts.recordingRow.hidden = recording === null;
  parts.withRecording.disabled = isSending || problem !== null;
  setText(parts.recordingText, recording ? t("share.with_recording", { size: formatBytes(recording.blob.size) }) : "");
  parts.uploadProblem.hidden = problem === null;
  setText(parts.uploadProblem, problem ? t(`share.upload_problem_${problem}`, { max: formatBytes(maxBytes) }) : "");
  const goKey = phase === "shared" ? "share.again" : willUpload ? "share.upload" : "share.go";
  fill(parts.go, icon("share"), t(goKey));
  parts.go.disabled = isSending;
  parts.go.classList.toggle("button-primary", phase !== "shared");
  parts.progressRow.hidden = !isSending;
  parts.progress.setAttribute("aria-label", t("share.sending"));
  fill(parts.cancel, t("common.cancel"));
  setText(parts.status, isSending ? t("share.sending") : phase === "shared" ? t("share.ready") : "");
}

/**
 * @param {string} recordingId
 * @param {BrowserRecording} file
 * @param {Parts} parts
 * @param {AbortSignal} signal
 */
async function sendRecording(recordingId, { blob, fileName }, parts, signal) {
  const typed = new Blob([blob], { type: uploadType(blob.type) ?? blob.type });
  const show = (/** @type {{sentBytes: number, totalBytes: number}} */ { sentBytes, totalBytes }) => {
    parts.progress.value = totalBytes > 0 ? sentBytes / totalBytes : 0;
    const percent = formatNumber(100 * parts.progress.value);
    setText(parts.sentText, t("share.sent", { percent, total: formatBytes(totalBytes) }));
  };
  show({ sentBytes: 0, totalBytes: blob.size });
  const headers = ownerHeaders(localStorage, recordingId);
  await sendFile(pathOf(recordingId, "upload-recording"), typed, fileName, { onProgress: show, signal, headers });
}

/** @param {Parts} parts @param {unknown} error */
function showProblem(parts, error) {
  const { code = "internal", message = "", status = 0 } = /** @type {Partial<import("./api.js").ApiError>} */ (error);
  parts.notice.show(status === 404 ? { code: "recording_gone", message } : { code, message });
}
