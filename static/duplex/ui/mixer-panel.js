// @ts-check
/**
 * The mixer of a video file: how loud file and voice reach the model, measured, trimmed, tried out.
 */

import { fill, h, icon, setText } from "../../shared/dom.js";
import { formatNumber } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";
import { problemText } from "../../shared/problems.js";
import { automaticGains } from "../lib/mixer-controller.js";
import { openMixerBench } from "../lib/mixer-bench.js";
import { mixSettingsOf } from "./omni-settings.js";

/** @typedef {import("./omni-settings.js").OmniStore} OmniStore */
/** @typedef {import("../lib/video-file.js").VideoFile} VideoFile */
/** @typedef {import("../lib/mixer-bench.js").MixerBench} MixerBench */
/** @typedef {import("../lib/mixer-controller.js").MixLevels} MixLevels */

const FLOOR_DB = -60;
const SOURCES = /** @type {const} */ (["file", "microphone", "mix"]);
/** @typedef {typeof SOURCES[number]} MeterName */

/**
 * @typedef {Object} MixerPanelOptions
 * @property {OmniStore} store
 * @property {() => VideoFile | null} file
 * @property {() => import("../lib/microphone.js").MicrophoneOptions} microphone
 * @property {() => MixLevels | null} callLevels levels of the call's own mixer, null while there is none
 */

/** @param {MeterName} name */
function meterRow(name) {
  const label = h("span", { class: "small" });
  const bar = h("span", { class: "meter-bar" });
  const value = h("span", { class: "meter-value small number soft", "aria-hidden": "true" });
  const track = h(
    "span",
    { class: "meter-track", role: "meter", "aria-valuemin": FLOOR_DB, "aria-valuemax": 0, "aria-valuenow": FLOOR_DB },
    bar,
  );
  const node = h("div", { class: "mixer-meter", dataset: { meter: name } }, label, track, value);
  return {
    node,
    draw() {
      setText(label, t(`omni.meter_${name}`));
      track.setAttribute("aria-label", t(`omni.meter_${name}`));
    },
    /** @param {number} levelDb */
    show(levelDb) {
      bar.style.setProperty("--level", String(1 - levelDb / FLOOR_DB));
      const rounded = String(Math.round(levelDb));
      if (track.getAttribute("aria-valuenow") === rounded) return;
      track.setAttribute("aria-valuenow", rounded);
      setText(value, `${formatNumber(Math.round(levelDb))} dB`);
    },
  };
}

/** @param {string} setting */
function slider(setting) {
  const id = `mixer-${setting}`;
  const label = h("label", { for: id });
  const node = h(
    "div",
    { class: "field field-row" },
    label,
    h("output", { class: "number", dataset: { valueOf: setting } }),
    h("input", { type: "range", id, dataset: { setting } }),
  );
  return { node, draw: () => setText(label, t(`omni.${setting}`)) };
}

/**
 * Its inputs carry `data-setting`: bind the settings on a root around it afterwards.
 *
 * @param {HTMLDetailsElement} el
 * @param {MixerPanelOptions} options
 * @returns {{microphoneLufs: () => number, update: () => void, close: () => Promise<void>}}
 */
export function mountMixerPanel(el, options) {
  const { store, file } = options;
  let microphoneLufs = -Infinity;
  /** @type {MixerBench | null} */
  let bench = null;
  /** @type {"idle" | "measuring" | "recording" | "recorded" | "playing"} */
  let doing = "idle";
  let problem = "";
  const summary = h("span", {});
  const meters = SOURCES.map(meterRow);
  const [trimFile, trimVoice, monitor] = ["trim_file_db", "trim_microphone_db", "monitor_volume"].map(slider);
  const loudness = h("p", { class: "small soft number", role: "status" });
  const error = h("p", { class: "field-error", role: "alert" });
  /** @param {string} action @param {() => void} run */
  const button = (action, run) => h("button", { type: "button", class: "button", dataset: { action }, on: { click: run } });
  const measure = button("measure", () => void use("measuring", measureVoice));
  const record = button("preview-record", () => (doing === "recording" ? bench?.finish() : void use("recording", recordMix)));
  const play = button("preview-play", () => (doing === "playing" ? bench?.stopPlaying() : void playMix()));
  const tryOut = h("div", { class: "row" }, measure, record, play);
  el.append(
    h("summary", {}, icon("settings"), summary),
    h(
      "div",
      { class: "stack-tight" },
      loudness,
      meters.map(({ node }) => node),
      trimFile.node,
      trimVoice.node,
      monitor.node,
      tryOut,
      error,
    ),
  );

  const draw = () => {
    const sound = store.get("file_sound");
    const hasVoice = sound !== "file";
    setText(summary, t("omni.mixer"));
    for (const part of [...meters, trimFile, trimVoice, monitor]) part.draw();
    setText(loudness, loudnessText(store, file()?.lufs ?? -Infinity, microphoneLufs));
    setText(error, problem);
    tryOut.hidden = monitor.node.hidden = options.callLevels() !== null; // not while the model listens
    trimFile.node.hidden = sound === "microphone";
    trimVoice.node.hidden = measure.hidden = !hasVoice;
    meters[0].node.hidden = sound === "microphone";
    meters[1].node.hidden = !hasVoice;
    fill(measure, icon("mic"), t(doing === "measuring" ? "omni.measuring" : "omni.measure"));
    fill(
      record,
      icon(doing === "recording" ? "stop" : "record"),
      t(doing === "recording" ? "omni.preview_stop" : "omni.preview_record"),
    );
    fill(play, icon(doing === "playing" ? "stop" : "play"), t(doing === "playing" ? "omni.preview_stop" : "omni.preview_play"));
    measure.disabled = doing !== "idle" && doing !== "recorded";
    record.disabled = doing === "measuring" || doing === "playing";
    play.disabled = doing !== "recorded" && doing !== "playing";
    el.dataset.doing = doing;
  };
  const follow = () => {
    const levels = bench?.levels ?? options.callLevels();
    const now = [levels?.fileDb, levels?.microphoneDb, levels?.mixDb];
    meters.forEach((meter, at) => meter.show(now[at] ?? FLOOR_DB));
    if ((bench || levels) && el.open) requestAnimationFrame(follow);
  };
  const closeBench = async () => {
    const open = bench;
    [bench, doing] = [null, "idle"];
    await open?.close();
    draw();
  };
  /** @param {"measuring" | "recording"} what @param {(bench: MixerBench) => Promise<void>} run */
  const use = async (what, run) => {
    await closeBench();
    [doing, problem] = [what, ""];
    draw();
    try {
      const opened = await openMixerBench({
        mix: mixSettingsOf(store, microphoneLufs, "monitor_volume"),
        sound: file()?.sound ?? null,
        microphone: options.microphone(),
      });
      if (doing !== what) return void opened.close(); // a call began meanwhile
      bench = opened;
      follow();
      await run(opened);
    } catch (reason) {
      const { title, nextStep } = problemText(/** @type {{code?: string}} */ (reason));
      problem = `${title} ${nextStep}`;
      await closeBench();
    }
  };
  /** @param {MixerBench} open */
  const measureVoice = async (open) => {
    microphoneLufs = await open.measure();
    problem = Number.isFinite(microphoneLufs) ? "" : t("omni.measured_nothing");
    await closeBench();
  };
  /** @param {MixerBench} open */
  const recordMix = async (open) => {
    const lengthS = await open.record();
    if (bench !== open) return;
    doing = lengthS > 0 ? "recorded" : "idle";
    draw();
  };
  const playMix = async () => {
    doing = "playing";
    draw();
    await bench?.play();
    if (doing === "playing") doing = "recorded";
    draw();
  };
  const update = () => {
    bench?.apply(mixSettingsOf(store, microphoneLufs, "monitor_volume"));
    if (el.open) follow();
    draw();
  };
  el.addEventListener("toggle", follow);
  store.addEventListener("change", update);
  onLangChange(draw);
  draw();
  return { microphoneLufs: () => microphoneLufs, update, close: closeBench };
}

/**
 * How loud film and voice are, and what is done about it.
 *
 * @param {OmniStore} store
 * @param {number} fileLufs
 * @param {number} microphoneLufs
 */
function loudnessText(store, fileLufs, microphoneLufs) {
  const mode = /** @type {import("../lib/mixer-controller.js").MixMode} */ (store.get("file_sound"));
  const gains = automaticGains(mode, { fileLufs, microphoneLufs });
  const one = (/** @type {string} */ key, /** @type {number} */ lufs, /** @type {number} */ gainDb) =>
    Number.isFinite(lufs)
      ? t(`omni.loudness_${key}`, { lufs: formatNumber(lufs, 1), gain: `${gainDb > 0 ? "+" : ""}${formatNumber(gainDb, 1)}` })
      : t(`omni.loudness_${key}_none`);
  return [
    mode !== "microphone" && one("file", fileLufs, gains.fileDb),
    mode !== "file" && one("voice", microphoneLufs, gains.microphoneDb),
  ]
    .filter(Boolean)
    .join(" · ");
}
