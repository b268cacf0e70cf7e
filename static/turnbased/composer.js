/**
 * The message composer: text, attachments, voice. Enter sends, Shift+Enter inserts a line break, Esc discards a
 * recording, and the space bar records while the text box is not focused. Drafts survive a reload.
 */

import { byId, find, html, icon, mountView, on, setText } from "../shared/lit.js";
import { codeOf, onLangChange, t } from "../shared/texts.js";
import { late } from "../shared/async.js";
import { mountAttachmentTray } from "./attachment-tray.js";
import { ACCEPT, isSendKey, limitWords } from "./conversation.js";

/** @import { MediaLimits, MediaPart } from "../../types/chat.js" */

/**
 * @typedef {Object} ComposerOptions
 * @property {MediaLimits} limits
 * @property {() => number} sentChars
 * @property {() => number} picturesPerS
 * @property {() => string | undefined} microphoneId
 * @property {() => boolean} sendsRecording send a recording as soon as it ends
 * @property {(text: string, media: readonly MediaPart[]) => boolean} onSend false keeps the draft
 * @property {() => void} onStop
 * @property {() => void} onRecord a recording starts: other audio has to stop
 * @property {(code: string) => void} onProblem
 * @property {(text: string, media: readonly MediaPart[]) => void} onDraft the draft changed
 */

const MOST_LINES_PX = 240;

export function mountComposer(/** @type {HTMLElement} */ el, /** @type {ComposerOptions} */ options) {
  const area = find(el, "textarea", HTMLTextAreaElement);
  const send = byId("send", HTMLButtonElement);
  const attach = byId("attach", HTMLButtonElement);
  const file = byId("file", HTMLInputElement);
  const line = find(el, ".composer-line");
  let isBusy = false;
  let isSendWished = false; // while a file is still being read
  file.accept = ACCEPT;

  const tray = mountAttachmentTray(byId("tray"), {
    ...options,
    onChange: () => {
      draw();
      keep();
      if (tray.hasProblem) isSendWished = false; // the user decides whether to send without it
      if (isSendWished && !tray.isReading) submit();
    },
  });
  const recorder = mountRecordPanel(byId("recording"), {
    button: byId("record", HTMLButtonElement),
    settings: () => ({ maxS: options.limits.audioMaxS, deviceId: options.microphoneId() }),
    onState: (isRecording) => {
      line.dataset.recording = String(isRecording);
      if (isRecording) options.onRecord();
    },
    onRecorded: (part) => {
      tray.addParts([part]);
      if (options.sendsRecording()) submit();
      else if (document.activeElement === document.body || !el.contains(document.activeElement)) send.focus();
    },
    onProblem: options.onProblem,
  });

  const isEmpty = () => area.value.trim() === "" && tray.parts.length === 0;
  const keep = () => options.onDraft(area.value, tray.parts);
  const draw = mountView(send, () => {
    send.ariaLabel = send.title = t(isBusy ? "chat.stop" : "chat.send");
    send.classList.toggle("is-stop", isBusy);
    send.disabled = !isBusy && (isEmpty() || tray.isReading);
    setText(byId("limits"), limitWords(options.limits));
    return icon(isBusy ? "stop" : "send");
  });
  const grow = () => {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, MOST_LINES_PX)}px`;
  };
  const changed = () => {
    grow();
    draw();
    keep();
  };
  const write = (/** @type {string} */ text) => {
    area.value = text;
    changed();
  };
  /** @param {string} text @param {readonly MediaPart[]} [media] */
  const fill = (text, media = []) => {
    tray.set(media);
    write(text);
  };
  const submit = () => {
    isSendWished = tray.isReading;
    if (isBusy || isSendWished || isEmpty()) return;
    if (options.onSend(area.value, tray.parts)) fill("");
  };
  const take = (/** @type {Iterable<File>} */ files) => void tray.addFiles([...files]);

  on(send, "click", () => (isBusy ? options.onStop() : submit()));
  on(area, "input", changed);
  on(area, "keydown", (/** @type {KeyboardEvent} */ event) => {
    if (!isSendKey(event)) return;
    event.preventDefault();
    submit();
  });
  on(area, "paste", (/** @type {ClipboardEvent} */ event) => {
    const { files = [], types = [] } = event.clipboardData ?? {};
    // Word processors and spreadsheets add a picture of the text.
    const isText = types.includes("text/html") && event.clipboardData?.getData("text/plain").trim();
    if (!files.length || isText) return;
    event.preventDefault();
    take(files);
  });
  on(attach, "click", () => file.click());
  on(file, "change", () => {
    take(file.files ?? []);
    file.value = "";
  });
  mountDropZone(byId("drop"), take);
  listenForKeys(recorder);

  return {
    /** @param {boolean} isNowBusy an answer is pending */
    setBusy(isNowBusy) {
      if (isBusy === isNowBusy) return;
      isBusy = isNowBusy;
      draw();
    },
    fill,
    /** Replaces the text; attachments stay. */
    write,
    focus: () => area.focus(),
  };
}

/** Keyboard control of recording, wherever the space bar has no other function. @param {ReturnType<typeof mountRecordPanel>} recorder */
function listenForKeys(recorder) {
  on(document, "keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && recorder.isOn) {
      event.preventDefault();
      recorder.cancel();
      return;
    }
    if (event.key !== " " || event.ctrlKey || event.altKey || event.metaKey || hasOwnSpace(event.target)) return;
    event.preventDefault();
    if (!event.repeat) recorder.press();
  });
  on(document, "keyup", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === " " && !hasOwnSpace(event.target)) recorder.release();
  });
}

const SPACE_USERS = "input, textarea, select, button, a, summary, video, audio, dialog, [role=button], [contenteditable]";

const hasOwnSpace = (/** @type {EventTarget | null} */ target) =>
  target instanceof Element && target.closest(SPACE_USERS) !== null;

// Drop target for files on the whole page, with an overlay while they hover.

/** @param {HTMLElement} el the overlay @param {(files: FileList) => void} take */
function mountDropZone(el, take) {
  let depth = 0; // each element under the pointer fires its own enter and leave
  const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
  const become = (/** @type {number} */ next) => {
    depth = Math.max(0, next);
    el.hidden = depth === 0;
  };
  mountView(
    el,
    () =>
      html`<div class="drop-words">
        ${icon("upload")}
        <p>${t("chat.drop")}</p>
      </div>`,
  );
  on(document, "dragenter", (/** @type {DragEvent} */ event) => {
    if (hasFiles(event) && !document.querySelector("dialog[open]")) become(depth + 1);
  });
  on(document, "dragleave", (/** @type {DragEvent} */ event) => {
    if (hasFiles(event)) become(depth - 1);
  });
  on(document, "dragover", (/** @type {DragEvent} */ event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  // A voice box on the page takes its own files and cancels the event.
  on(document, "drop", (/** @type {DragEvent} */ event) => {
    if (event.defaultPrevented || !event.dataTransfer?.files.length) return;
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) take(event.dataTransfer.files);
  });
  on(document, "drop", () => become(0), { capture: true });
  el.hidden = true;
}

// Voice messages: tap to start and stop, or hold while speaking.

const HOLD_MS = 350; // a longer press counts as holding: releasing it ends the recording
const SHORTEST_S = 0.3; // less is an accidental tap

/**
 * @param {HTMLElement} el shown while it records
 * @param {Object} options
 * @param {HTMLButtonElement} options.button starts it
 * @param {() => {maxS: number, deviceId?: string}} options.settings
 * @param {(isRecording: boolean) => void} options.onState
 * @param {(part: MediaPart) => void} options.onRecorded
 * @param {(code: string) => void} options.onProblem
 */
function mountRecordPanel(el, { button, settings, onState, onRecorded, onProblem }) {
  /** @type {Awaited<ReturnType<ReturnType<typeof import("./media-input.js").mountRecorder>>> | null} */ let recorder = null;
  /** @type {"idle" | "opening" | "recording"} */ let state = "idle";
  let pressedAtMs = 0;
  let isEndWished = false;

  const load = late(
    () => import("./media-input.js"),
    ({ mountRecorder }) => mountRecorder(el, { cancel, done: () => void end(), onLost }),
  );
  const onLost = (/** @type {string} */ code) => {
    onProblem(code);
    void end();
  };
  const draw = () => {
    const isOn = state !== "idle";
    el.hidden = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
    button.ariaLabel = button.title = t(isOn ? "chat.record_end" : "chat.record");
  };
  const become = (/** @type {typeof state} */ next) => {
    state = next;
    draw();
    onState(state !== "idle");
  };
  const begin = async () => {
    pressedAtMs = performance.now();
    isEndWished = false;
    become("opening");
    try {
      const start = await load();
      const opened = await start(settings());
      if (/** @type {string} */ (state) !== "opening") return void opened.close(); // cancelled meanwhile
      recorder = opened;
      become("recording");
      if (isEndWished) await end();
    } catch (error) {
      become("idle");
      onProblem(codeOf(error));
    }
  };
  const end = async () => {
    if (state === "opening") isEndWished = true;
    if (state !== "recording" || !recorder) return;
    const ending = recorder;
    recorder = null;
    become("idle");
    const part = await ending.finish();
    if (part.durationS < SHORTEST_S) onProblem("too_short");
    else onRecorded(part);
  };
  const cancel = () => {
    if (state === "idle") return;
    void recorder?.close();
    recorder = null;
    become("idle");
    button.focus();
  };
  const press = () => (state === "idle" ? void begin() : void end());
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
  // A click without a pointer comes from the keyboard or a screen reader.
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
