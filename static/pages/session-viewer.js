/** Replays a recording: /s/ID. */

import { getJson, recordingPath } from "../shared/api.js";
import { byId, find, html, icon, mountNotice, nothing, render } from "../shared/lit.js";
import { formatDateTime, onLangChange, t } from "../shared/texts.js";
import { nextTask } from "../shared/async.js";
import { forgetRecent, isOwnRecording } from "../shared/memory.js";
import { startPage } from "../shared/page.js";
import { loadRecording, mountCommentCard, mountHead } from "../viewer/head-view.js";
import { mountDuplex } from "../viewer/duplex-view.js";
import { configPanel, loadWhatIsSeen, makeUnitsPanel, replayPanel, turnBubbles } from "../viewer/panels.js";

/** @import { ApiError } from "../shared/api.js" */
/** @import { Meta, Recording } from "../../types/recording.js" */

/** @typedef {{meta: Meta, recording: Recording}} Loaded */

const starting = startPage({ titleKey: "viewer.title" });
formatDateTime(0); // the first date takes a telephone 200 ms, which here pass while the texts arrive
const page = await starting;
page.show();
const recordingId = decodeURIComponent(location.pathname.split("/").filter(Boolean).at(-1) ?? "");
const urlOf = (/** @type {string} */ path) =>
  recordingPath(recordingId, `assets/${path.split("/").map(encodeURIComponent).join("/")}`);
const [content, more, waiting] = ["content", "more", "waiting"].map((id) => byId(id));
const notice = mountNotice(byId("notice"));
const leaving = new AbortController();
addEventListener("pagehide", () => leaving.abort());
addEventListener("pageshow", ({ persisted }) => {
  if (persisted && shown.loaded === null) location.reload(); // what was waited for when the page was left
});

const head = mountHead(recordingId, {
  onDeleted: () => {
    leaving.abort(); // it is no longer waited for
    forgetRecent(recordingId);
    shown.loaded = null;
    draw();
    byId("actions").hidden = true;
    byId("comment").hidden = true;
    notice.show("recording_gone", { kind: "caution", actions: [{ label: () => t("viewer.home"), href: "/" }] });
  },
  onProblem: (error) => notice.show(/** @type {{code?: string, message?: string}} */ (error)),
});
const comment = mountCommentCard(byId("comment"), { recordingId, maxChars: page.defaults?.limits.comment_chars });

const shown = {
  waitingKey: /** @type {string | null} */ (null), // of the text that says what is waited for
  loaded: /** @type {Loaded | null} */ (null),
  duplex: /** @type {ReturnType<typeof mountDuplex> | null} */ (null),
  units: /** @type {(() => unknown) | null} */ (null),
};

function setWaiting(/** @type {string | null} */ key) {
  shown.waitingKey = key;
  draw();
}

function draw() {
  const { waitingKey, loaded, duplex } = shown;
  waiting.hidden = waitingKey === null;
  const words = waitingKey && html`<p>${t(waitingKey)}</p>`;
  render(waitingKey && html`<span class="spinner" aria-hidden="true"></span>${words}`, waiting);
  render(loaded && contentView(loaded), content);
  render(loaded && moreView(loaded), more);
  if (loaded && !duplex) loadWhatIsSeen(content);
}

function contentView(/** @type {Loaded} */ { meta, recording }) {
  if (recording.mode === "duplex")
    return html`${flawNote(meta)}
      <div class="duplex"></div>`;
  const sound = recording.merged_replay;
  return html`${flawNote(meta)}
    <div class="stack">${sound ? replayPanel({ name: "sound", url: urlOf(sound) }) : nothing}</div>
    <div>${turnBubbles(recording, urlOf)}</div>`;
}

function flawNote(/** @type {Meta} */ { problem, files_left_out: lost, status }) {
  if (!problem && !lost && status !== "failed") return nothing;
  return html`<div class="notice" data-kind="caution">
    ${icon("warning")}
    <p>${lost ? t("viewer.files_lost", { n: lost }) : t("viewer.incomplete")}</p>
  </div>`;
}

function moreView(/** @type {Loaded} */ { meta, recording }) {
  const { browser_recording: upload, config } = meta;
  const { merged_replay_video: film, merged_replay_subtitles: subtitles } = recording;
  const file = { onPlay: pause, subtitles: subtitles && urlOf(subtitles) };
  return html`${shown.units?.()} ${film ? replayPanel({ ...file, name: "film", url: urlOf(film) }) : nothing}
  ${upload ? replayPanel({ name: "browser", url: urlOf(upload), onPlay: pause }) : nothing}
  ${configPanel(recording.config ?? config ?? {})}`;
}

function pause() {
  shown.duplex?.clock.pause();
  content.querySelectorAll("audio").forEach((sound) => sound.pause());
}

function mountCall(/** @type {Recording} */ recording) {
  const duplex = mountDuplex(find(content, ".duplex"), { recording, urlOf });
  shown.duplex = duplex;
  shown.units = makeUnitsPanel({ plan: duplex.plan, onJump: duplex.seek, playFile: duplex.playFile, draw });
}
onLangChange(draw);

async function open() {
  void comment.load().catch(() => undefined); // the error is shown below
  const loaded = await loadRecording(recordingId, {
    onMeta: head.update,
    onWaiting: (status) => {
      setWaiting(status === "recording" ? "viewer.still_talking" : "viewer.still_writing");
      page.ready();
    },
    signal: leaving.signal,
  });
  const { recording } = loaded;
  Object.assign(shown, { waitingKey: null, loaded });
  await nextTask();
  draw();
  if (recording.mode === "duplex") mountCall(recording);
  await nextTask();
  shown.duplex?.setSound(recording);
  draw();
  page.ready();
}

const allow = (/** @type {boolean} */ isAllowed) => {
  head.allow(isAllowed);
  comment.allow(isAllowed);
};
if (isOwnRecording(recordingId)) allow(true);
else {
  getJson("/api/admin/state").then(
    ({ is_admin: isAdmin }) => allow(isAdmin),
    () => undefined,
  );
}
try {
  await open();
} catch (error) {
  setWaiting(null);
  if (!leaving.signal.aborted) {
    const { code, message, status } = /** @type {Partial<ApiError>} */ (error);
    notice.show(status === 404 ? { code: "recording_gone", message } : { code, message }, {
      actions: [{ label: () => t("common.reload"), run: () => location.reload() }],
    });
    if (!code) console.error(error);
  }
}
page.ready();
