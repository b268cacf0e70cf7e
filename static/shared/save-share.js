/** Sharing of a finished conversation: comment, upload of the browser's recording, link to the replay. */

import { ApiError, getJson, recordingPath, sendJson } from "./api.js";
import { formatBytes, formatNumber, t } from "./texts.js";
import { html, icon, live, mountView, nothing, noticeView, textButton, toast } from "./lit.js";
import { addRecent, ownerHeaders } from "./memory.js";
import { serverDefaults } from "./i18n.js";
import { MAX_COMMENT_CHARS, MAX_UPLOAD_BYTES, uploadProblem, uploadType } from "./share-rules.js";

/** @import { Problem } from "./lit.js" */

const ID_BASE = 36;

/**
 * @typedef {{blob: Blob, fileName: string}} BrowserRecording
 *
 * @typedef {Object} ShareSubject
 * @property {string | null} recordingId of the server; null if it keeps none
 * @property {string} appType
 * @property {() => Promise<BrowserRecording | null>} [getBrowserRecording] the browser's own recording
 *
 * @typedef {ReturnType<typeof mountSaveShare>} SaveShare
 * @typedef {ReturnType<typeof fresh>} State
 */

const fresh = () => ({
  subject: /** @type {ShareSubject} */ ({ recordingId: null, appType: "" }),
  comment: "",
  sentComment: "",
  isRecordingWanted: false,
  recording: /** @type {BrowserRecording | null} */ (null),
  sent: /** @type {Blob | null} */ (null),
  sending: /** @type {AbortController | null} */ (null),
  progress: { sentBytes: 0, totalBytes: 0 },
  phase: /** @type {"open" | "sending" | "shared"} */ ("open"),
  problem: /** @type {Problem | null} */ (null),
  url: /** @type {string | null} */ (null),
});

export function mountSaveShare(/** @type {HTMLElement} */ el) {
  const id = `share-${Math.random().toString(ID_BASE).slice(2)}`; // a page may have several
  let maxBytes = MAX_UPLOAD_BYTES;
  const state = fresh();
  const draw = mountView(el, () => view(id, state, maxBytes, change, () => void share(state, change, `${id}-link`)));
  function change(/** @type {Partial<State>} */ next) {
    Object.assign(state, next);
    draw();
  }
  const look = async () => {
    const asked = state.subject;
    const recording = (await asked.getBrowserRecording?.().catch(() => null)) ?? null;
    if (asked !== state.subject) return;
    change({ recording, isRecordingWanted: recording !== null && uploadProblem(recording.blob, maxBytes) === null });
  };
  void serverDefaults.then((defaults) => {
    maxBytes = defaults?.limits.recording_upload_bytes ?? MAX_UPLOAD_BYTES;
    void look();
  });
  /** Shows another recording and discards what was entered. @param {ShareSubject | null} subject */
  return (subject) => {
    state.sending?.abort();
    change({ ...fresh(), ...(subject && { subject }) });
    void look();
  };
}

/** @param {State} state @param {(next: Partial<State>) => void} change @param {string} linkId */
async function share(state, change, linkId) {
  const { subject, recording, sent } = state;
  const { recordingId, appType } = subject;
  if (state.phase === "sending" || !recordingId) return;
  const sending = new AbortController();
  const { signal } = sending;
  change({ phase: "sending", sending, problem: null });
  /** @type {Partial<State>} */ let outcome = { phase: "open", sending: null };
  try {
    const file = state.isRecordingWanted && recording && recording.blob !== sent ? recording : null;
    const headers = ownerHeaders(recordingId);
    if (file) {
      const typed = new Blob([file.blob], { type: uploadType(file.blob.type) ?? file.blob.type });
      change({ progress: { sentBytes: 0, totalBytes: typed.size } });
      const onProgress = (/** @type {State["progress"]} */ progress) => change({ progress });
      await sendFile(recordingPath(recordingId, "upload-recording"), typed, file.fileName, { onProgress, signal, headers });
      if (state.subject === subject) state.sent = file.blob;
    }
    const [path, comment] = [recordingPath(recordingId, "comment"), state.comment.trim()];
    // Who leaves the field empty keeps a comment made elsewhere; then only the recording's existence is checked.
    if (comment === state.sentComment) await getJson(path, { signal });
    else await sendJson("POST", path, { comment }, { signal, headers });
    outcome = { phase: "shared", sending: null, sentComment: comment, url: linkOf(recordingId) };
  } catch (error) {
    if (!signal.aborted) outcome.problem = problemOf(error);
  }
  if (state.subject !== subject) return; // another recording is shown meanwhile
  change(outcome);
  if (!outcome.url) return;
  addRecent(recordingId, appType);
  await copyLink(outcome.url, linkId);
}

function problemOf(/** @type {unknown} */ error) {
  const { code = "internal", message = "", status = 0 } = /** @type {Partial<ApiError>} */ (error);
  return { code: status === 404 ? "recording_gone" : code, message };
}

/**
 * @param {string} id
 * @param {State} state
 * @param {number} maxBytes
 * @param {(next: Partial<State>) => void} change
 * @param {() => void} run
 */
function view(id, state, maxBytes, change, run) {
  const { phase, problem, recording, isRecordingWanted, subject } = state;
  const isSending = phase === "sending";
  const tooMuch = recording ? uploadProblem(recording.blob, maxBytes) : null;
  const willUpload = recording !== null && isRecordingWanted && tooMuch === null;
  const goKey = phase === "shared" ? "share.again" : willUpload ? "share.upload" : "share.go";
  const { sentBytes, totalBytes } = state.progress;
  const done = totalBytes > 0 ? sentBytes / totalBytes : 0;
  return html`<section class="save-share stack-tight" aria-labelledby="${id}-title" data-phase=${phase}>
    <h3 id="${id}-title">${t("share.title")}</h3>
    <p class="hint">${t(subject.recordingId ? "share.intro" : "share.not_recorded")}</p>
    <div class="stack-tight" ?hidden=${subject.recordingId === null}>
      ${commentField({ id: `${id}-comment`, value: state.comment, onInput: (comment) => change({ comment }) })}
      <label class="check" ?hidden=${recording === null}
        ><input
          type="checkbox"
          .checked=${isRecordingWanted}
          ?disabled=${isSending || tooMuch !== null}
          @change=${(/** @type {{target: HTMLInputElement}} */ { target }) => change({ isRecordingWanted: target.checked })}
        /><span class="number"
          >${recording ? t("share.with_recording", { size: formatBytes(recording.blob.size) }) : nothing}</span
        ></label
      >
      <p class="hint" ?hidden=${tooMuch === null}>
        ${tooMuch ? t(`share.upload_problem_${tooMuch}`, { max: formatBytes(maxBytes) }) : nothing}
      </p>
      <div class="row">
        ${textButton(t(goKey), run, {
          sign: "share",
          action: "share",
          style: phase === "shared" ? "" : "button-primary",
          isOff: isSending,
        })}
      </div>
      <div class="share-progress" ?hidden=${!isSending}>
        <progress max="1" .value=${done} aria-label=${t("share.sending")}></progress>
        <span class="small soft number"
          >${t("share.sent", { percent: formatNumber(100 * done), total: formatBytes(totalBytes) })}</span
        >
        ${textButton(t("common.cancel"), () => state.sending?.abort(), { action: "cancel-share" })}
      </div>
    </div>
    <div role="alert" data-code=${problem?.code ?? nothing} ?hidden=${problem === null}>
      ${problem ? noticeView(problem) : nothing}
    </div>
    ${shareLink({ id: `${id}-link`, url: state.url })}
    <p class="visually-hidden" role="status">${isSending ? t("share.sending") : phase === "shared" ? t("share.ready") : ""}</p>
  </section>`;
}

// Uploads a file as a form, with progress.

const HTTP_OK = 200;
const HTTP_REDIRECT = 300;

/**
 * @param {string} path
 * @param {Blob} blob its `type` says what it is
 * @param {string} fileName
 * @param {{onProgress: (done: State["progress"]) => void, headers: Record<string, string>, signal: AbortSignal}} how
 * @returns {Promise<void>}
 */
function sendFile(path, blob, fileName, { onProgress, signal, headers }) {
  const form = new FormData();
  form.append("file", blob, fileName);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch does not report upload progress
    request.open("POST", path);
    request.responseType = "json";
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => onProgress({ sentBytes: loaded, totalBytes: total }));
    request.addEventListener("load", () => {
      if (request.status >= HTTP_OK && request.status < HTTP_REDIRECT) return resolve();
      const { detail, code } = request.response ?? {};
      reject(new ApiError(typeof detail === "string" ? detail : "", code ?? "internal", request.status));
    });
    request.addEventListener("error", () => reject(new ApiError("The server was not reached.", "offline", 0)));
    request.addEventListener("abort", () => reject(signal.reason));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(form);
  });
}

// The link to the replay: copy, open, pass on; and the comment field.

const LINK_SHOWN_MS = 20_000;

export const linkOf = (/** @type {string} */ recordingId) => new URL(`/s/${encodeURIComponent(recordingId)}`, location.href).href;

/** @param {string} url @param {string} [fieldId] of the field that shows it */
export async function copyLink(url, fieldId = "") {
  const field = /** @type {HTMLInputElement | null} */ (document.getElementById(fieldId));
  if (await copyText(url, field)) toast(t("share.copied"));
  else if (field) toast(t("share.select"));
  else toast(url, { shownMs: LINK_SHOWN_MS });
}

/** @param {{id: string, url: string | null}} options null hides it */
const shareLink = ({ id, url }) =>
  html`<div class="share-link stack-tight" ?hidden=${url === null}>
    <div class="field">
      <label for=${id}>${t("share.link")}</label>
      <input
        type="text"
        id=${id}
        readonly
        class="mono share-url"
        spellcheck="false"
        .value=${url ?? ""}
        @focus=${(/** @type {{target: HTMLInputElement}} */ { target }) => target.select()}
      />
    </div>
    <div class="row">
      ${textButton(t("share.copy"), () => void copyLink(url ?? "", id), { sign: "copy", action: "copy-share-link" })}
      <a class="button" data-action="open-share-link" href=${url ?? ""}>${icon("play")}${t("share.open")}</a>
      ${textButton(t("share.pass_on"), () => void passOn(url ?? ""), {
        sign: "share",
        action: "pass-on",
        isShown: typeof navigator.share === "function",
      })}
    </div>
  </div>`;

/** Closing the system's share sheet is not an error. @param {string} url */
const passOn = (url) => navigator.share({ title: t("share.pass_title"), url }).catch(() => undefined);

// Comment field with a character count.

const NEARLY = 0.9; // from here on the count is announced

/** @param {{id: string, value: string, onInput: (text: string) => void, labelKey?: string, maxChars?: number}} options */
export function commentField({ id, value, onInput, labelKey = "share.comment", maxChars = MAX_COMMENT_CHARS }) {
  const count = t("share.count", { n: formatNumber(value.length), max: formatNumber(maxChars) });
  return html`<div class="field">
    <label for=${id}>${t(labelKey)}</label>
    <textarea
      id=${id}
      rows="3"
      dir="auto"
      maxlength=${maxChars}
      aria-describedby="${id}-count"
      placeholder=${t("share.comment_hint")}
      .value=${live(value)}
      @input=${(/** @type {{target: HTMLTextAreaElement}} */ { target }) => onInput(target.value)}
    ></textarea>
    <span id="${id}-count" class="hint number comment-count">${count}</span>
    <span class="visually-hidden" role="status">${value.length >= maxChars * NEARLY ? count : ""}</span>
  </div>`;
}

// Copies text to the clipboard, or selects it where that is not allowed.

/**
 * @param {string} text
 * @param {HTMLInputElement | null} [field] that shows the text; it is selected if copying fails
 * @returns {Promise<boolean>} whether it was copied
 */
export async function copyText(text, field = null) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    field?.focus();
    field?.select();
    return field !== null && document.execCommand("copy"); // deprecated, but the only way without TLS
  }
}
