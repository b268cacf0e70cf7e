/** Voice sample picker: a file, the server's default, or one of its library. */

import { listLibraryVoices, loadDefaultVoice, loadLibraryVoice, readVoiceFile, VoiceError } from "./decode-sound.js";
import { fileButton, find, html, live, mountView, textButton } from "./lit.js";
import { formatBytes, formatNumber, problemWords, t } from "./texts.js";
import { encodeWav } from "./pcm.js";
import { VOICE_RATE_HZ, voiceLengthS } from "./prompt.js";
import { makeSoundPlayer } from "./sound-player.js";

/** @import { Voice, VoiceLimits } from "./prompt.js" */
/** @import { SoundPlayer } from "./sound-player.js" */

/**
 * @typedef {Object} RefAudioPlayerOptions
 * @property {VoiceLimits} limits
 * @property {() => string} [label] names the group
 * @property {(voice: Voice | null) => void} [onChange] the visitor chose or removed a voice
 *
 * @typedef {{readonly voice: Voice | null, set: (voice: Voice | null) => void, reset: () => Promise<void>,
 *   close: () => void}} RefAudioPlayer `set` emits no event; `reset` loads the server's default voice
 */

/** @param {HTMLElement} el @param {RefAudioPlayerOptions} options @returns {RefAudioPlayer} */
export function mountRefAudioPlayer(el, { limits, label = () => t("voice.label"), onChange }) {
  const hintId = `voice-${++lastId}-hint`;
  const { minS, maxS, maxFileBytes } = limits;
  const limitTexts = { min: formatNumber(minS, 1), max: formatNumber(maxS), size: formatBytes(maxFileBytes) };
  /** @type {Voice | null} */ let voice = null;
  /** @type {SoundPlayer | null} */ let player = null;
  /** @type {Awaited<ReturnType<typeof listLibraryVoices>>} */ let library = [];
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
    set(next) {
      request += 1;
      el.removeAttribute("aria-busy");
      show(next);
    },
    reset: () => take(loadDefaultVoice),
    close() {
      player?.close();
      draw.close();
    },
  };
}

/** @param {Voice} voice */
function nameOf(voice) {
  const name = voice.origin === "default" ? t("voice.default_name") : voice.name;
  return t("voice.named", { name, s: formatNumber(voiceLengthS(voice), 1) });
}

/** @param {HTMLElement} el @param {(file: File) => void} take */
function takeDrops(el, take) {
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

/**
 * @typedef {{readonly voice: Voice | null, set: (voice: Voice | null) => void}} TtsVoice
 *   `voice` is null while the voice above is used
 */

/**
 * @param {HTMLElement} el
 * @param {{limits: VoiceLimits, onChange?: (voice: Voice | null) => void}} options
 * @returns {TtsVoice}
 */
export function mountTtsVoice(el, { limits, onChange }) {
  const name = `tts-voice-${++lastId}`;
  let isOwn = false;
  const box = document.createElement("div");
  const player = mountRefAudioPlayer(box, { limits, label: () => t("voice.tts_own"), onChange: (voice) => onChange?.(voice) });
  const current = () => (isOwn ? player.voice : null);
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
        @change=${() => (become(value === "own"), onChange?.(current()))}
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
    get voice() {
      return current();
    },
    set(voice) {
      player.set(voice);
      become(voice !== null);
    },
  };
}
