// @ts-check
/** Replays a recording: /s/ID. */

import { getJson } from "../shared/api.js";
import { byId, fill, find, h, icon } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { mountNotice } from "../shared/notice.js";
import { isOwnRecording } from "../shared/own-recordings.js";
import { startPage } from "../shared/page.js";
import { mountCommentCard } from "../viewer/comment-card.js";
import { mountConfig } from "../viewer/config-view.js";
import { mountDuplex } from "../viewer/duplex-view.js";
import { mountHead } from "../viewer/head-view.js";
import { assetUrl } from "../viewer/recording-types.js";
import { mountReplay } from "../viewer/replays-view.js";
import { mountTurns } from "../viewer/turns-view.js";
import { loadRecording, mayGetReplay, waitForReplay } from "../viewer/viewer-source.js";

/** @typedef {import("../viewer/recording-types.js").Meta} Meta */
/** @typedef {import("../viewer/recording-types.js").Recording} Recording */
/** @typedef {{setSound: (recording: Recording) => void, pause: () => void}} Shown */

const page = await startPage({ titleKey: "viewer.title" });
const recordingId = decodeURIComponent(location.pathname.split("/").filter(Boolean).at(-1) ?? "");
const urlOf = (/** @type {string} */ path) => assetUrl(recordingId, path);
const nonce = find(document, "meta[name=style-nonce]", HTMLMetaElement).content;
const [content, more, waiting] = ["content", "more", "waiting"].map((id) => byId(id, HTMLElement));
const notice = mountNotice(byId("notice", HTMLElement));
const libraryNote = mountNotice(byId("library-note", HTMLElement));
const leaving = new AbortController();
addEventListener("pagehide", () => leaving.abort());

const head = mountHead(recordingId, {
  onDeleted: () => {
    fill(content);
    fill(more);
    byId("actions", HTMLElement).hidden = true;
    byId("comment", HTMLElement).hidden = true;
    notice.show("recording_gone", { kind: "caution", actions: [{ label: () => t("viewer.home"), href: "/" }] });
  },
  onProblem: (error) => notice.show(/** @type {{code?: string, message?: string}} */ (error)),
});
const comment = mountCommentCard(byId("comment", HTMLElement), { recordingId, maxChars: page.defaults?.limits.comment_chars });

/** @type {string | null} */
let waitingKey = null;
const drawWaiting = () => {
  waiting.hidden = waitingKey === null;
  if (waitingKey) fill(waiting, h("span", { class: "spinner", "aria-hidden": "true" }), h("p", {}, t(waitingKey)));
};
/** @param {string | null} key of the text that says what is waited for */
function setWaiting(key) {
  waitingKey = key;
  drawWaiting();
}
onLangChange(drawWaiting);

/** @param {Meta} meta @param {Recording} recording @returns {Shown} */
function show(meta, recording) {
  if (recording.mode !== "duplex") {
    const whole = h("div", { class: "stack" });
    const bubbles = h("div", {});
    content.append(whole, bubbles);
    mountTurns(bubbles, { recording, urlOf });
    /** @type {HTMLMediaElement | null} */
    let media = null;
    return {
      setSound: ({ merged_replay: sound }) => {
        if (sound && !media)
          ({ media } = mountReplay(whole, { name: "sound", url: urlOf(sound), iconName: "wave", isOpen: true }));
      },
      pause: () => media?.pause(),
    };
  }
  const onMissing = () => libraryNote.show("missing_library", { kind: "caution" });
  const duplex = mountDuplex(content, { recording, urlOf, nonce, onMissing });
  return { setSound: duplex.setSound, pause: () => duplex.clock.pause() };
}

/** @param {Recording} recording @param {() => void} onPlay */
function showFilm({ merged_replay_video: film, merged_replay_subtitles: subtitles }, onPlay) {
  if (film)
    mountReplay(more, { name: "film", url: urlOf(film), iconName: "film", subtitles: subtitles && urlOf(subtitles), onPlay });
}

/** @param {Meta} meta @param {Recording} recording @param {() => void} onPlay */
function showMore(meta, recording, onPlay) {
  const { browser_recording: upload } = meta;
  showFilm(recording, onPlay);
  if (upload) mountReplay(more, { name: "browser", url: urlOf(upload), iconName: "record", onPlay });
  mountConfig(more, recording.config ?? meta.config ?? {});
}

/** @param {Meta} meta */
function noteFlaws({ problem, files_left_out: lost, status }) {
  if (!problem && !lost && status !== "failed") return;
  const box = h("div", { class: "notice", dataset: { kind: "caution" } });
  content.prepend(box);
  const draw = () => fill(box, icon("warning"), h("p", {}, lost ? t("viewer.files_lost", { n: lost }) : t("viewer.incomplete")));
  onLangChange(draw);
  draw();
}

async function open() {
  void comment.load().catch(() => undefined); // what is wrong is said below
  const { meta, recording } = await loadRecording(recordingId, {
    onMeta: head.update,
    onWaiting: (status) => {
      setWaiting(status === "recording" ? "viewer.still_talking" : "viewer.still_writing");
      page.ready();
    },
    signal: leaving.signal,
  });
  setWaiting(null);
  const shown = show(meta, recording);
  noteFlaws(meta);
  shown.setSound(recording);
  showMore(meta, recording, shown.pause);
  page.ready();
  if (!mayGetReplay(meta, recording, Date.now())) return;
  setWaiting("viewer.sound_coming");
  const latest = await waitForReplay(recordingId, leaving.signal);
  setWaiting(null);
  if (!latest) return;
  shown.setSound(latest);
  if (!recording.merged_replay_video) showFilm(latest, shown.pause);
}

const allow = (/** @type {boolean} */ isAllowed) => {
  head.allow(isAllowed);
  comment.allow(isAllowed);
};
if (isOwnRecording(localStorage, recordingId)) allow(true);
else {
  /** @type {Promise<{is_admin: boolean}>} */
  const state = getJson("/api/admin/state");
  state.then(
    ({ is_admin: isAdmin }) => allow(isAdmin),
    () => undefined,
  );
}
try {
  await open();
} catch (error) {
  setWaiting(null);
  if (!leaving.signal.aborted) {
    const { code, message, status } = /** @type {Partial<import("../shared/api.js").ApiError>} */ (error);
    notice.show(status === 404 ? { code: "recording_gone", message } : { code, message }, {
      actions: [{ label: () => t("common.reload"), run: () => location.reload() }],
    });
    if (!code) console.error(error);
  }
}
page.ready();
