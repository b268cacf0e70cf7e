// @ts-check
/** Records a voice message: tap to begin and end, or hold while speaking; the level runs along. */

import { on } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { floatsToBase64 } from "../shared/pcm.js";

/** A press that lasts longer is held: letting go ends it. */
const HOLD_MS = 350;
const SHORTEST_S = 0.3; // less is a slip of the finger

/** Only who speaks needs them. */
const loadRecorder = () => Promise.all([import("./record-view.js"), import("./record-view.js")]);

/** @typedef {import("./media-part.js").MediaPart} MediaPart */
/** @typedef {import("./record-view.js").SoundRecorder} SoundRecorder */

/**
 * @typedef {Object} RecordPanelOptions
 * @property {HTMLButtonElement} button starts it
 * @property {() => {maxS: number, deviceId?: string}} settings
 * @property {(isRecording: boolean) => void} onState
 * @property {(part: MediaPart) => void} onRecorded
 * @property {(problem: {code: string}) => void} onProblem
 */

/** @param {HTMLElement} el shown while it records @param {RecordPanelOptions} options */
export function mountRecordPanel(el, { button, settings, onState, onRecorded, onProblem }) {
  /** @type {SoundRecorder | null} */
  let recorder = null;
  /** @type {"idle" | "opening" | "recording"} */
  let state = "idle";
  let pressedAtMs = 0;
  let isEndWished = false;
  let maxS = 0;
  /** @type {import("./record-view.js").RecordView | null} */
  let view = null;

  const draw = () => {
    const isOn = state !== "idle";
    el.hidden = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
    const words = t(isOn ? "chat.record_end" : "chat.record");
    button.setAttribute("aria-label", words);
    button.title = words;
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
      const [{ startRecording }, { mountRecordView }] = await loadRecorder();
      view ??= mountRecordView(el, { cancel, done: () => void end() });
      const opened = await startRecording(asked);
      if (/** @type {string} */ (state) !== "opening") return void opened.cancel(); // given up meanwhile
      recorder = opened;
      listen(opened, view);
      become("recording");
      if (isEndWished) await end();
    } catch (error) {
      become("idle");
      onProblem(/** @type {{code: string}} */ (error));
    }
  };
  /** @param {SoundRecorder} opened @param {import("./record-view.js").RecordView} shown */
  const listen = (opened, shown) => {
    shown.begin();
    opened.on("level", ({ rms }) => shown.add(rms, opened.lengthS, maxS));
    opened.on("silent", () => shown.warn(true));
    opened.on("audible", () => shown.warn(false));
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
