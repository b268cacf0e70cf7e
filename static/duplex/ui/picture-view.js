/**
 * Displays around the picture of a video call: subtitles, last turns, level bars, sent pictures; and its recordings: the
 * browser's files, replay and link of the server's. It looks its elements up by id (see omni.html).
 */

import { byId, find, html, icon, iconButton, mountView, on, setText, toast } from "../../shared/lit.js";
import { formatBytes, formatNumber, MS_PER_S, onLangChange, t } from "../../shared/texts.js";
import { subtitleLookOf } from "../lib/call-settings.js";
import { controlsFor } from "../lib/call-state.js";
import { sentText } from "../lib/call-texts.js";
import { paintSubtitles, subtitleAt } from "../lib/picture-taker.js";
import { inOrder } from "../lib/session-state.js";
import { mountLevelBars } from "./meters.js";
import { bindSettings } from "../../shared/settings-form.js";
import { choiceField, flagField, SettingsStore } from "../../shared/settings-store.js";
import { BITRATES, FORMATS, mayLackSound, pickFormat, supportedFormats } from "../lib/session-recorder.js";
import { isSupported, SessionVideoRecorder } from "../lib/session-video-recorder.js";
import { mountCallRecorder } from "./call-view.js";

/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { PictureTaker } from "../lib/picture-taker.js" */
/** @import { OmniStore } from "../lib/call-settings.js" */
/** @import { VideoRecorderOptions } from "../../../types/devices.js" */

// Named presets of the length penalty.

const LENGTHS = Object.freeze({ concise: 1.05, balanced: 1.1, verbose: 1.2 });
const DIGITS = 2;

function mountLengthPills(/** @type {HTMLElement} */ el, /** @type {OmniStore} */ store) {
  el.setAttribute("role", "group");
  const draw = mountView(el, () => {
    el.setAttribute("aria-label", t("live.settings.length_penalty"));
    return Object.entries(LENGTHS).map(
      ([name, value]) =>
        html`<button
          type="button"
          class="pill"
          data-length=${name}
          aria-pressed=${String(store.get("length_penalty") === value)}
          @click=${() => store.set("length_penalty", value)}
        >
          ${t(`omni.length_${name}`)} ${formatNumber(value, DIGITS)}
        </button>`,
    );
  });
  on(store, "change", draw);
}

/** @typedef {{store: OmniStore, video: HTMLVideoElement, pictures: PictureTaker}} PictureViewOptions */

export function mountPictureView(/** @type {DuplexCall} */ call, /** @type {PictureViewOptions} */ { store, video, pictures }) {
  const subtitles = mountSubtitles(byId("subtitles"), call, store);
  const drawOverlay = mountChatOverlay(byId("chat-overlay"), call);
  const bars = mountLevelBars(byId("level-bars"), call);
  const drawFigures = mountView(
    byId("figures"),
    () => html`<p class="small soft number">${sentText(pictures.sent(), call.state)}</p>`,
  );
  mountLengthPills(byId("length-pills"), store);

  const recordStore = new SettingsStore("omni_rec_settings", RECORD_FIELDS);
  const recordSettings = byId("record-settings", HTMLDialogElement);
  mountRecordSettings(recordSettings, recordStore);
  const draw = (/** @type {CanvasRenderingContext2D} */ ctx, /** @type {number} */ width, /** @type {number} */ height) => {
    if (recordStore.get("burn_subtitles")) paintSubtitles(ctx, width, height, subtitles.text(), subtitleLookOf(store));
  };
  const isAutomatic = () => store.get("record");
  const { latest } = mountRecordingPanel(byId("recorded"), call, { video, store: recordStore, isAutomatic, draw });
  mountCallRecorder(byId("after-call"), call, {
    appType: "omni",
    isOn: () => false,
    video() {
      const file = latest();
      return file?.name.startsWith(call.state.sessionId) ? { blob: file.blob, fileName: file.name } : null;
    },
  });

  call.on("opened", ({ source }) => pictures.attach(source, (base64) => call.session?.sendPicture(base64) ?? false));
  call.on("state", () => {
    drawFigures();
    subtitles.update();
    drawOverlay();
  });
  call.on("heard", drawOverlay);
  on(store, "change", subtitles.update);
  return {
    openRecordSettings: () => recordSettings.showModal(),
    prepare() {
      pictures.clear();
      bars.clear();
    },
  };
}

// Text over the picture: subtitles, and the last turns in fullscreen.

const TICK_MS = 500;
const LINES_SHOWN = 12;

/** Hidden from screen readers, since the conversation is next to the picture. @param {HTMLElement} el @param {DuplexCall} call @param {OmniStore} store */
function mountSubtitles(el, call, store) {
  el.setAttribute("aria-hidden", "true");
  const box = el.parentElement ?? el; // in fullscreen the last turns are above the subtitles
  const text = () => subtitleAt(call.state.turns, performance.now());
  const draw = mountView(el, () => {
    const { isOn, heightPercent, bottomPercent, topPercent } = subtitleLookOf(store);
    const now = isOn ? text() : "";
    el.hidden = now === "";
    box.style.setProperty("--subtitle-height", `${heightPercent}%`);
    box.style.setProperty("--subtitle-bottom", String(bottomPercent / 100));
    box.style.setProperty("--subtitle-top", String(topPercent / 100));
    return html`<p class="subtitle-words" dir="auto" .textContent=${now}></p>`;
  });
  setInterval(draw, TICK_MS); // they disappear after a while
  return { update: draw, text };
}

function mountChatOverlay(/** @type {HTMLElement} */ el, /** @type {DuplexCall} */ call) {
  let count = 0;
  const line = (/** @type {ReturnType<typeof inOrder>[number]} */ { model, user }) =>
    html`<li class="overlay-line" data-who=${user ? "user" : "model"}>
      <strong>${t(user ? "common.you" : "common.model")}</strong>
      ${
        user
          ? t("omni.seconds", { seconds: formatNumber(user.lengthMs / MS_PER_S, 1) })
          : html`<bdi>${model.text.trim() || t("live.no_words")}</bdi>`
      }
    </li>`;
  const draw = mountView(el, () => {
    const lines = inOrder(call.state.turns, call.kind.userTurns.turns).slice(-LINES_SHOWN);
    count = lines.length;
    el.hidden = count === 0;
    return html`<div class="overlay-box" role="log" aria-live="off" tabindex="0" aria-label=${t("live.transcript")}>
      <ol class="overlay-list">
        ${lines.map(line)}
      </ol>
    </div>`;
  });
  const box = find(el, "div");
  return () => {
    const [heightPx, before] = [box.scrollHeight, count];
    draw();
    if (count > 0 && (box.scrollHeight !== heightPx || count !== before)) box.scrollTop = box.scrollHeight;
  };
}

// Records video and audio of a call in the browser and offers the files.

/** @typedef {SettingsStore<typeof RECORD_FIELDS>} RecordStore */
/** @typedef {{name: string, url: string, blob: Blob}} RecordedFile */

const MILLION = 1_000_000;

const RECORD_FIELDS = Object.freeze({
  format: choiceField("auto", ["auto", ...FORMATS.map(({ id }) => id)]),
  bitrate: choiceField(String(BITRATES[1]), BITRATES.map(String)),
  burn_subtitles: flagField(true),
});

/**
 * @param {HTMLElement} el list of the files
 * @param {DuplexCall} call
 * @param {Pick<VideoRecorderOptions, "draw"> & {video: HTMLVideoElement, store: RecordStore, isAutomatic: () => boolean}} options
 *   `isAutomatic`: each call is recorded from its start
 */
function mountRecordingPanel(el, call, { video, store, isAutomatic, draw: paint }) {
  const button = byId("record", HTMLButtonElement);
  /** @type {SessionVideoRecorder | null} */ let recorder = null;
  /** @type {RecordedFile[]} */ let files = [];
  let count = 0;

  const draw = () => {
    const isOn = recorder !== null;
    button.disabled = !isOn && !controlsFor(call.state).isTalk;
    button.setAttribute("aria-pressed", String(isOn));
    button.title = t(isOn ? "omni.record_stop" : "omni.record");
    button.setAttribute("aria-label", button.title);
  };
  const drawFiles = mountView(el, () => {
    el.hidden = files.length === 0;
    return files.map((file) => fileRow(file, () => remove(file)));
  });
  const remove = (/** @type {RecordedFile} */ file) => {
    URL.revokeObjectURL(file.url);
    files = files.filter((other) => other !== file);
    drawFiles();
  };
  const start = async () => {
    const { source, player } = call;
    if (recorder || !source || !player) return;
    const fresh = new SessionVideoRecorder();
    recorder = fresh;
    const format = fresh.start({
      picture: video,
      user: source.output,
      isMuted: call.devices.isMuted,
      answer: player.output,
      bitrate: Number(store.get("bitrate")),
      formatId: store.get("format"),
      draw: paint,
    });
    fresh.addEventListener("full", () => void stop("omni.record_full"));
    fresh.addEventListener("failed", () => void stop("omni.record_failed"));
    if (format === null) await stop("omni.record_impossible");
    draw();
  };
  /** @param {string} [reasonKey] why it stopped by itself */
  const stop = async (reasonKey) => {
    const ending = recorder;
    recorder = null;
    if (!ending) return;
    if (reasonKey) toast(t(reasonKey));
    const blob = await ending.stop();
    if (blob) {
      count += 1;
      const name = `${call.state.sessionId}_${count}.${ending.format?.extension ?? "webm"}`;
      files = [...files, { name, url: URL.createObjectURL(blob), blob }];
    }
    draw();
    drawFiles();
  };
  on(button, "click", () => void (recorder ? stop() : start()));
  call.on("opened", ({ source }) => recorder?.connectUser(source.output));
  call.on("devices", ({ isMuted }) => recorder?.setMuted(isMuted));
  call.on("prepared", () => {
    if (isAutomatic()) void start();
  });
  call.on("state", draw);
  call.beforeClose(() => stop());
  onLangChange(draw);
  draw();
  return { latest: () => files.at(-1) ?? null };
}

function fileRow(/** @type {RecordedFile} */ { name, url, blob }, /** @type {() => void} */ remove) {
  return html`<p class="recorded-file">
    <a class="button" href=${url} download=${name} data-action="download-video"
      >${icon("download")}${t("omni.download")}<span class="small soft number">${formatBytes(blob.size)}</span></a
    >
    ${iconButton("trash", t("omni.remove_file", { name }), remove)}
  </p>`;
}

/** Recording settings: format, quality, subtitles. @param {HTMLDialogElement} dialog @param {RecordStore} store */
function mountRecordSettings(dialog, store) {
  const formats = find(dialog, "[data-setting=format]", HTMLSelectElement);
  const note = find(dialog, "[data-note]");
  const possible = supportedFormats(isSupported);
  mountView(
    formats,
    () =>
      html`<option value="auto">${t("omni.format_auto")}</option>
        ${possible.map(({ id }) => html`<option value=${id}>${t(`omni.format_${id.replace("-", "_")}`)}</option>`)}`,
  );
  mountView(find(dialog, "[data-setting=bitrate]"), () =>
    store.fields.bitrate.choices.map((value) => {
      const words = t("omni.bitrate_value", { n: formatNumber(Number(value) / MILLION) });
      return html`<option value=${value}>${words}</option>`;
    }),
  );
  const draw = () => {
    const chosen = pickFormat(isSupported, store.get("format"));
    formats.value = possible.some(({ id }) => id === store.get("format")) ? store.get("format") : "auto";
    let warning = "";
    if (!chosen) warning = "omni.record_impossible";
    else if (!chosen.hasPicture) warning = "omni.format_no_picture";
    else if (mayLackSound(chosen, isSupported)) warning = "omni.format_no_sound";
    note.hidden = warning === "";
    setText(note, warning && t(warning));
  };
  draw();
  bindSettings(dialog, store);
  on(store, "change", draw);
  onLangChange(draw);
}
