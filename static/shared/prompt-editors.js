/** Voice sample picker (a file, the server's default, or one of its library), and the editor of a conversation's system content. */

import { listLibraryVoices, loadDefaultVoice, loadLibraryVoice, readVoiceFile, VoiceError } from "./decode-sound.js";
import { fileButton, find, html, iconButton, live, mountView, repeat, textButton } from "./lit.js";
import { formatBytes, formatNumber, problemWords, t } from "./texts.js";
import { bytesToBase64, encodeWav } from "./pcm.js";
import { emptyItem, moveItem, VOICE_RATE_HZ, voiceLengthS } from "./prompt.js";
import { makeSoundPlayer } from "./sound-player.js";

/** @import { ContentItem, ImageItem, ItemKind, Voice, VoiceLimits } from "./prompt.js" */
/** @import { SoundPlayer } from "./sound-player.js" */

/** @typedef {ReturnType<typeof mountRefAudioPlayer>} RefAudioPlayer */

/**
 * @param {HTMLElement} el
 * @param {Object} options
 * @param {VoiceLimits} options.limits
 * @param {() => string} [options.label] names the group
 * @param {(voice: Voice | null) => void} [options.onChange] the visitor chose or removed a voice
 */
export function mountRefAudioPlayer(el, { limits, label = () => t("voice.label"), onChange }) {
  const hintId = `voice-${++lastId}-hint`;
  const { minS, maxS, maxFileBytes } = limits;
  const limitTexts = { min: formatNumber(minS, 1), max: formatNumber(maxS), size: formatBytes(maxFileBytes) };
  /** @type {Voice | null} */ let voice = null;
  /** @type {SoundPlayer | null} */ let player = null;
  /** @type {readonly Http.RefAudio[]} */ let library = [];
  let problem = "";
  const show = (/** @type {Voice | null} */ next) => {
    voice = next;
    problem = "";
    player?.close();
    player =
      next &&
      makeSoundPlayer({
        file: () => new Blob([encodeWav(next.samples, VOICE_RATE_HZ)], { type: "audio/wav" }),
        durationS: voiceLengthS(next),
        label: () => next.name,
      });
    draw();
  };
  /** Number of the latest request; results of earlier ones are dropped. */
  let request = 0;
  const take = async (/** @type {() => Promise<Voice | null>} */ load) => {
    const own = ++request;
    el.setAttribute("aria-busy", "true");
    try {
      const loaded = await load();
      if (own !== request) return;
      show(loaded);
      onChange?.(loaded);
      if (!loaded) problem = t("voice.no_default");
    } catch (error) {
      const s = error instanceof VoiceError ? formatNumber(error.lengthS, 1) : "";
      const words = error instanceof VoiceError ? t(`voice.problem_${error.code}`, { ...limitTexts, s }) : problemWords(error);
      if (own === request) problem = words;
    } finally {
      if (own === request) el.removeAttribute("aria-busy");
      draw();
    }
  };
  const remove = () => {
    request += 1;
    show(null);
    onChange?.(null);
    find(el, "button", HTMLButtonElement).focus();
  };
  /** @param {File} file */
  const takeFile = (file) => void take(() => readVoiceFile(file, limits));
  const onLibrary = (/** @type {{target: HTMLSelectElement}} */ { target }) => {
    const entry = library.find(({ id }) => id === target.value);
    target.selectedIndex = 0;
    if (entry) void take(() => loadLibraryVoice(entry));
  };
  takeDrops(el, takeFile);
  el.classList.add("voice-box");
  el.setAttribute("role", "group");
  el.setAttribute("aria-describedby", hintId);
  const draw = mountView(el, () => {
    el.setAttribute("aria-label", label());
    return html`<div class="stack-tight" ?hidden=${voice === null}>
        <span class="voice-name">${voice && nameOf(voice)}</span>${player?.node}
      </div>
      <div class="row voice-actions">
        ${fileButton(t(voice ? "voice.other_file" : "voice.choose"), takeFile, { accept: "audio/*,video/*", sign: "upload" })}
        ${textButton(t("voice.use_default"), () => void take(loadDefaultVoice), {
          sign: "retry",
          style: "button-quiet",
          isShown: voice?.origin !== "default",
        })}
        <select class="voice-library" ?hidden=${library.length === 0} aria-label=${t("voice.library")} @change=${onLibrary}>
          <option value="">${t("voice.library")}</option>
          ${library.map(({ id, name }) => html`<option value=${id}>${name}</option>`)}
        </select>
        ${textButton(t("common.remove"), remove, { sign: "trash", style: "button-quiet", isShown: voice !== null })}
      </div>
      <p class="hint" id=${hintId}>${t("voice.hint", limitTexts)}</p>
      <p class="field-error" role="alert" .textContent=${problem}></p>`;
  });
  void listLibraryVoices()
    .catch(() => [])
    .then((entries) => {
      library = entries;
      draw();
    });

  return {
    get voice() {
      return voice;
    },
    /** Emits no event. @param {Voice | null} next */
    set(next) {
      request += 1;
      el.removeAttribute("aria-busy");
      show(next);
    },
    reset: () => take(loadDefaultVoice), // the server's voice
    close() {
      player?.close();
      draw.close();
    },
  };
}

function nameOf(/** @type {Voice} */ voice) {
  const name = voice.origin === "default" ? t("voice.default_name") : voice.name;
  return t("voice.named", { name, s: formatNumber(voiceLengthS(voice), 1) });
}

function takeDrops(/** @type {HTMLElement} */ el, /** @type {(file: File) => void} */ take) {
  el.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    el.classList.add("is-drop-target");
  });
  el.addEventListener("dragleave", () => el.classList.remove("is-drop-target"));
  el.addEventListener("drop", (event) => {
    el.classList.remove("is-drop-target");
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    event.stopPropagation();
    take(event.dataTransfer.files[0]);
  });
}

// The output voice: the voice sample above, or a separate one.

let lastId = 0;

/** @typedef {ReturnType<typeof mountTtsVoice>} TtsVoice */

/** @param {HTMLElement} el @param {{limits: VoiceLimits, onChange?: () => void}} options */
export function mountTtsVoice(el, { limits, onChange }) {
  const name = `tts-voice-${++lastId}`;
  let isOwn = false;
  const box = document.createElement("div");
  const player = mountRefAudioPlayer(box, { limits, label: () => t("voice.tts_own"), onChange });
  const become = (/** @type {boolean} */ next) => {
    isOwn = next;
    draw();
  };
  const choice = (/** @type {string} */ value, /** @type {string} */ words, /** @type {boolean} */ isChosen) =>
    html`<label class="check"
      ><input
        type="radio"
        name=${name}
        value=${value}
        .checked=${live(isChosen)}
        @change=${() => (become(value === "own"), onChange?.())}
      /><span>${words}</span></label
    >`;
  const draw = mountView(el, () => {
    box.hidden = !isOwn;
    return html`<fieldset class="stack-tight">
      <legend>${t("voice.tts_label")}</legend>
      ${choice("same", t("voice.tts_same"), !isOwn)}${choice("own", t("voice.tts_own"), isOwn)}${box}
    </fieldset>`;
  });
  return {
    /** null while the voice above is used */
    get voice() {
      return isOwn ? player.voice : null;
    },
    set(/** @type {Voice | null} */ voice) {
      player.set(voice);
      become(voice !== null);
    },
  };
}

const MOST_ITEMS = 16; // our own limit
const MOST_CHARACTERS = 100_000;

/** @typedef {{item: ContentItem, box: HTMLElement | null, close: () => void}} Row `box` holds the player of a voice */

/** @type {ItemKind[]} */ const KINDS = ["text", "audio", "image"];

/**
 * `onChange`: the visitor changed something; `setItems` does not call it.
 * @typedef {{limits: VoiceLimits, onChange?: (items: readonly ContentItem[]) => void}} EditorOptions
 * @typedef {{readonly items: readonly ContentItem[], setItems: (items: readonly ContentItem[]) => void}} SystemContentEditor
 */

/** @param {HTMLElement} el @param {EditorOptions} options @returns {SystemContentEditor} */
export function mountSystemContentEditor(el, { limits, onChange }) {
  /** @type {Row[]} */ let rows = [];
  let spoken = "";
  const items = () => rows.map(({ item }) => item);
  const changed = () => {
    draw();
    onChange?.(items());
  };
  const makeRow = (/** @type {ContentItem} */ item) => {
    if (item.type !== "audio") return { item, box: null, close: () => {} };
    const box = document.createElement("div");
    /** @type {Row} */ const row = { item, box, close: () => player.close() };
    const player = mountRefAudioPlayer(box, {
      limits,
      label: () => nameOf(row),
      onChange(voice) {
        row.item = { type: "audio", voice };
        changed();
      },
    });
    player.set(item.voice);
    return row;
  };
  /** @param {Row} row */
  const nameOf = (row) => t("content.item", { n: rows.indexOf(row) + 1, kind: t(`content.kind_${row.item.type}`) });
  const focusIn = (/** @type {number} */ index, /** @type {string} */ selector) => {
    const node = el.querySelectorAll(".content-item")[index];
    const found = node?.querySelector(selector) ?? node?.querySelector("button:not(:disabled)");
    if (found instanceof HTMLElement) found.focus();
  };
  const add = (/** @type {ItemKind} */ kind) => {
    rows = [...rows, makeRow(emptyItem(kind))];
    changed();
    focusIn(rows.length - 1, "textarea, .voice-actions button, .row > button");
  };
  /** @param {Row} row @param {number} step @param {string} [goTo] selector of the control to focus afterwards */
  const move = (row, step, goTo = `[data-action="${step < 0 ? "up" : "down"}"]:not(:disabled)`) => {
    rows = moveItem(rows, rows.indexOf(row), step);
    const target = rows.indexOf(row);
    spoken = t("content.moved", { n: target + 1, of: rows.length });
    changed();
    focusIn(target, goTo);
  };
  const remove = (/** @type {Row} */ row) => {
    const index = rows.indexOf(row);
    row.close();
    rows = rows.toSpliced(index, 1);
    spoken = t("content.removed");
    changed();
    if (rows.length) focusIn(Math.min(index, rows.length - 1), "[data-action=remove]");
    else el.querySelector("button")?.focus();
  };
  const rowView = (/** @type {Row} */ row) => {
    const [name, index] = [nameOf(row), rows.indexOf(row)];
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
      event.preventDefault();
      const step = event.key === "ArrowUp" ? -1 : 1;
      if (index + step < 0 || index + step >= rows.length) return;
      move(row, step, event.target instanceof HTMLTextAreaElement ? "textarea" : undefined);
    };
    /** @param {string} sign @param {string} action @param {string} words @param {() => void} run @param {boolean} isOff */
    const button = (sign, action, words, run, isOff) =>
      iconButton(sign, words, run, { label: `${words}: ${name}`, action, isOff });
    return html`<li class="content-item" data-kind=${row.item.type} @keydown=${onKey}>
      <div class="spread">
        <span class="label small">${name}</span>
        <div class="content-tools">
          ${button("up", "up", t("content.up"), () => move(row, -1), index === 0)}
          ${button("down", "down", t("content.down"), () => move(row, 1), index === rows.length - 1)}
          ${button("trash", "remove", t("common.delete"), () => remove(row), false)}
        </div>
      </div>
      ${row.box ?? bodyOf(row, name)}
    </li>`;
  };
  const bodyOf = (/** @type {Row} */ row, /** @type {string} */ name) => {
    if (row.item.type === "image") return imageBody(row.item, (item) => ((row.item = item), changed()));
    const onInput = (/** @type {{target: HTMLTextAreaElement}} */ { target }) => {
      row.item = { type: "text", text: target.value };
      onChange?.(items());
    };
    return html`<textarea
      rows="3"
      dir="auto"
      maxlength=${MOST_CHARACTERS}
      aria-label=${name}
      placeholder=${t("content.text_hint")}
      .value=${live(row.item.type === "text" ? row.item.text : "")}
      @input=${onInput}
    ></textarea>`;
  };
  const draw = mountView(
    el,
    () =>
      html`<ol class="content-list">
          ${rows.length ? repeat(rows, (row) => row, rowView) : html`<li class="empty small">${t("content.empty")}</li>`}
        </ol>
        <div class="row">
          ${KINDS.map((kind) =>
            textButton(t(`content.add_${kind}`), () => add(kind), { sign: "plus", isOff: rows.length >= MOST_ITEMS }),
          )}
        </div>
        <p class="visually-hidden" role="status">${spoken}</p>`,
  );

  return {
    get items() {
      return items();
    },
    setItems(next) {
      rows.forEach((row) => row.close());
      rows = next.map(makeRow);
      draw();
    },
  };
}

function imageBody(/** @type {ImageItem} */ { name, data }, /** @type {(item: ContentItem) => void} */ change) {
  const take = async (/** @type {File} */ file) =>
    change({ type: "image", name: file.name, data: bytesToBase64(new Uint8Array(await file.arrayBuffer())) });
  return html`<div class="row">
    <img class="content-picture" alt=${name} ?hidden=${!data} src="data:image/*;base64,${data}" />
    ${fileButton(t(data ? "content.other_image" : "content.choose_image"), take, { accept: "image/*", sign: "image" })}
  </div>`;
}
