/**
 * Recordings of a video call: the browser's files, replay and link of the server's. Loaded when a call starts.
 * It looks its elements up by id (see omni.html).
 */

import { byId, find, html, icon, iconButton, mountView, on, setText } from "../../shared/lit.js";
import { formatBytes, formatNumber, onLangChange, t } from "../../shared/texts.js";
import { toast } from "../../shared/notice.js";
import { bindSettings } from "../../shared/settings-form.js";
import { choiceField, flagField, SettingsStore } from "../../shared/settings-store.js";
import {
  BITRATES,
  createUserBus,
  FORMATS,
  isSupported,
  mayLackSound,
  pickFormat,
  SessionVideoRecorder,
  supportedFormats,
} from "../lib/session-video-recorder.js";
import { paintSubtitles } from "../lib/subtitle-text.js";
import { mountCallRecorder } from "./after-call.js";

/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { CallEvents } from "../../../types/duplex.js" */
/** @import { UserBus } from "../../../types/devices.js" */
/** @import { SubtitleLook } from "../lib/subtitle-text.js" */

/** @param {DuplexCall} call @param {Pick<RecordingOptions, "video" | "isAutomatic" | "look" | "subtitle">} options */
export function mountRecordings(call, options) {
  const store = new SettingsStore("omni_rec_settings", RECORD_FIELDS, localStorage);
  const dialog = byId("record-settings", HTMLDialogElement);
  mountRecordSettings(dialog, store);
  const { latest } = mountRecordingPanel(byId("recorded", HTMLElement), call, {
    ...options,
    button: byId("record", HTMLButtonElement),
    store,
  });
  mountCallRecorder(byId("after-call", HTMLElement), call, {
    appType: "omni",
    isOn: () => false,
    video() {
      const file = latest();
      return file?.name.startsWith(call.state.sessionId) ? { blob: file.blob, fileName: file.name } : null;
    },
  });
  return { openSettings: () => dialog.showModal() };
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
 * @typedef {Object} RecordingOptions
 * @property {HTMLButtonElement} button starts and stops a recording
 * @property {HTMLVideoElement} video
 * @property {RecordStore} store
 * @property {() => boolean} isAutomatic record each call from its start
 * @property {() => SubtitleLook} look
 * @property {() => string} subtitle current subtitle
 */

/** @param {HTMLElement} el list of the files @param {DuplexCall} call @param {RecordingOptions} options */
function mountRecordingPanel(el, call, { button, video, store, isAutomatic, look, subtitle }) {
  /** @type {SessionVideoRecorder | null} */ let recorder = null;
  /** @type {UserBus | null} */ let bus = null;
  /** @type {CallEvents<unknown>["opened"] | null} */ let opened = null;
  /** @type {RecordedFile[]} */ let files = [];
  let count = 0;

  const draw = () => {
    const isOn = recorder !== null;
    const { phase } = call.state;
    button.disabled = !isOn && phase !== "running" && phase !== "pausing" && phase !== "paused";
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
    if (recorder || !opened) return;
    const fresh = new SessionVideoRecorder();
    recorder = fresh;
    bus = createUserBus({ isMuted: call.devices.isMuted });
    bus.connect(opened.source.output);
    const wish = store.get("format");
    const format = await fresh.start({
      picture: video,
      user: bus.stream,
      answer: opened.player.output,
      bitrate: Number(store.get("bitrate")),
      ...(wish !== "auto" && { formatId: wish }),
      draw: (ctx, width, height) => {
        if (store.get("burn_subtitles")) paintSubtitles(ctx, width, height, subtitle(), look());
      },
    });
    fresh.addEventListener("full", () => void stop("omni.record_full"));
    fresh.addEventListener("failed", () => void stop("omni.record_failed"));
    if (format === null) await stop("omni.record_impossible");
    draw();
  };
  /** @param {string} [reasonKey] why it stopped by itself */
  const stop = async (reasonKey) => {
    const [ending, endingBus] = [recorder, bus];
    [recorder, bus] = [null, null];
    if (!ending) return;
    if (reasonKey) toast(t(reasonKey));
    const blob = await ending.stop();
    await endingBus?.close();
    if (blob) {
      count += 1;
      const name = `${call.state.sessionId}_${count}.${ending.format?.extension ?? "webm"}`;
      files = [...files, { name, url: URL.createObjectURL(blob), blob }];
    }
    draw();
    drawFiles();
  };
  on(button, "click", () => void (recorder ? stop() : start()));
  call.on("opened", (devices) => {
    opened = devices;
    bus?.connect(devices.source.output);
  });
  call.on("devices", ({ isMuted }) => bus?.setMuted(isMuted));
  call.on("prepared", () => {
    if (isAutomatic()) void start();
  });
  call.on("state", draw);
  call.beforeClose(async () => {
    await stop();
    opened = null;
  });
  onLangChange(draw);
  draw();
  return { latest: () => files.at(-1) ?? null };
}

/** @param {RecordedFile} file @param {() => void} remove */
function fileRow({ name, url, blob }, remove) {
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
  const bitrates = find(dialog, "[data-setting=bitrate]", HTMLSelectElement);
  const note = find(dialog, "[data-note]", HTMLElement);
  const possible = supportedFormats(isSupported);
  mountView(
    formats,
    () =>
      html`<option value="auto">${t("omni.format_auto")}</option>
        ${possible.map(({ id }) => html`<option value=${id}>${t(`omni.format_${id.replace("-", "_")}`)}</option>`)}`,
  );
  mountView(bitrates, () =>
    store.fields.bitrate.choices.map((value) => {
      const words = t("omni.bitrate_value", { n: formatNumber(Number(value) / MILLION) });
      return html`<option value=${value}>${words}</option>`;
    }),
  );
  const draw = () => {
    const chosen = pickFormat(isSupported, store.get("format"));
    formats.value = possible.some(({ id }) => id === store.get("format")) ? store.get("format") : "auto";
    bitrates.value = store.get("bitrate");
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
  on(find(dialog, "[data-action=close-record-settings]", HTMLButtonElement), "click", () => dialog.close());
}
