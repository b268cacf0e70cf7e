// @ts-check
/**
 * Records a voice message: tap to begin and end, or hold while speaking; the level runs along.
 */

import { levelShare } from "../duplex/ui/level-meter.js";
import { mountPainter, themeColours } from "../shared/canvas-tools.js";
import { fill, h, icon, on, setText } from "../shared/dom.js";
import { formatClock } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { floatsToBase64 } from "../shared/pcm.js";

/** A press that lasts longer is held: letting go ends it. */
const HOLD_MS = 350;
const SHORTEST_S = 0.3; // less is a slip of the finger
const BAR_PX = 3;
const GAP_PX = 2;
const MOST_BARS = 600;

/** @typedef {import("./media-part.js").MediaPart} MediaPart */
/** @typedef {import("./sound-recorder.js").SoundRecorder} SoundRecorder */

/**
 * @typedef {Object} RecordPanelOptions
 * @property {HTMLButtonElement} button starts it
 * @property {() => {maxS: number, deviceId?: string}} settings
 * @property {(isRecording: boolean) => void} onState
 * @property {(part: MediaPart) => void} onRecorded
 * @property {(problem: {code: string}) => void} onProblem
 */

/**
 * @param {HTMLElement} el shown while it records
 * @param {RecordPanelOptions} options
 */
export function mountRecordPanel(el, { button, settings, onState, onRecorded, onProblem }) {
  /** @type {SoundRecorder | null} */
  let recorder = null;
  /** @type {"idle" | "opening" | "recording"} */
  let state = "idle";
  let pressedAtMs = 0;
  let isEndWished = false;
  let maxS = 0;
  const view = buildView(el);

  const draw = () => {
    const isOn = state !== "idle";
    el.hidden = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
    const words = t(isOn ? "chat.record_end" : "chat.record");
    button.setAttribute("aria-label", words);
    button.title = words;
    view.draw();
  };
  /** @param {typeof state} next */
  const become = (next) => {
    state = next;
    draw();
    onState(state !== "idle");
  };
  const begin = async () => {
    pressedAtMs = performance.now();
    isEndWished = false;
    become("opening");
    const asked = settings();
    maxS = asked.maxS;
    try {
      const { startRecording } = await import("./sound-recorder.js"); // only who speaks needs it
      const opened = await startRecording(asked);
      if (/** @type {string} */ (state) !== "opening") return void opened.cancel(); // given up meanwhile
      recorder = opened;
      listen(opened);
      become("recording");
      if (isEndWished) await end();
    } catch (error) {
      become("idle");
      onProblem(/** @type {{code: string}} */ (error));
    }
  };
  /** @param {SoundRecorder} opened */
  const listen = (opened) => {
    view.begin();
    opened.on("level", ({ rms }) => view.add(rms, opened.lengthS, maxS));
    opened.on("silent", () => view.warn(true));
    opened.on("audible", () => view.warn(false));
    opened.on("limit", () => void end());
    opened.on("ended", ({ code }) => {
      onProblem({ code });
      void end();
    });
  };
  const end = async () => {
    if (state === "opening") isEndWished = true;
    if (state !== "recording" || !recorder) return;
    const ending = recorder;
    recorder = null;
    become("idle");
    const samples = await ending.finish();
    const durationS = samples.length / 16_000;
    if (durationS < SHORTEST_S) return onProblem({ code: "too_short" });
    onRecorded({ type: "audio", data: floatsToBase64(samples), mimeType: "", name: "", durationS });
  };
  const cancel = () => {
    if (state === "idle") return false;
    void recorder?.cancel();
    recorder = null;
    become("idle");
    button.focus();
    return true;
  };
  const press = () => (state === "idle" ? void begin() : void end());
  /** Letting go ends what was held. */
  const release = () => {
    if (state !== "idle" && performance.now() - pressedAtMs > HOLD_MS) void end();
  };

  let isPointerDown = false;
  on(button, "pointerdown", (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0) return;
    isPointerDown = true;
    press();
  });
  for (const type of ["pointerup", "pointercancel"]) {
    on(window, type, () => {
      if (isPointerDown) release();
      isPointerDown = false;
    });
  }
  // A click without a pointer is a key or a screen reader.
  on(button, "click", (/** @type {MouseEvent} */ event) => event.detail === 0 && press());
  on(view.cancel, "click", cancel);
  on(view.done, "click", () => void end());
  onLangChange(draw);
  draw();

  return {
    press,
    release,
    cancel,
    get isOn() {
      return state !== "idle";
    },
  };
}

/** @param {HTMLElement} el */
function buildView(el) {
  const canvas = h("canvas", { class: "record-wave", "aria-hidden": "true" });
  const time = h("span", { class: "number record-time", role: "timer" });
  const hint = h("p", { class: "small soft record-hint", role: "status" });
  const cancel = h("button", { type: "button", class: "button button-icon" });
  const done = h("button", { type: "button", class: "button button-primary button-icon" });
  el.classList.add("record-panel");
  fill(
    el,
    h("div", { class: "record-line" }, cancel, h("span", { class: "record-dot", "aria-hidden": "true" }), time, canvas, done),
    hint,
  );
  const colours = themeColours(el);

  /** @type {number[]} */
  let bars = [];
  let isSilent = false;
  const painter = mountPainter(canvas, (ctx, width, height) => {
    const count = Math.floor(width / (BAR_PX + GAP_PX));
    ctx.fillStyle = colours.css(isSilent ? "caution" : "listen");
    bars.slice(-count).forEach((share, index) => {
      const length = Math.max(2, share * height);
      ctx.fillRect(index * (BAR_PX + GAP_PX), (height - length) / 2, BAR_PX, length);
    });
  });
  const draw = () => {
    fill(cancel, icon("trash"));
    cancel.setAttribute("aria-label", t("chat.record_cancel"));
    cancel.title = t("chat.record_cancel");
    fill(done, icon("check"));
    done.setAttribute("aria-label", t("chat.record_end"));
    done.title = t("chat.record_end");
    setText(hint, t(isSilent ? "chat.record_silent" : "chat.record_hint"));
  };
  return {
    cancel,
    done,
    draw,
    begin() {
      bars = [];
      isSilent = false;
      setText(time, formatClock(0));
      draw();
    },
    /** @param {number} rms @param {number} lengthS @param {number} maxS */
    add(rms, lengthS, maxS) {
      bars = [...bars, levelShare(rms)].slice(-MOST_BARS);
      setText(time, t("chat.record_time", { now: formatClock(lengthS), most: formatClock(maxS) }));
      painter.request();
    },
    /** @param {boolean} isNowSilent */
    warn(isNowSilent) {
      isSilent = isNowSilent;
      draw();
    },
  };
}
