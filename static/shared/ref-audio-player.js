// @ts-check
/**
 * Chooses a voice sample: a file, the server's own, one of its library; plays and removes it.
 */

import { listLibraryVoices, loadDefaultVoice, loadLibraryVoice } from "../duplex/ui/ref-audio-init.js";
import { VoiceError, readVoiceFile } from "./decode-sound.js";
import { fill, h, icon, on, setText } from "./dom.js";
import { formatBytes, formatNumber } from "./formats.js";
import { onLangChange, t } from "./i18n.js";
import { problemText } from "./problems.js";
import { mountSoundPlayer } from "./sound-player.js";
import { VOICE_RATE_HZ, voiceLengthS } from "./voice.js";

/** @typedef {import("./voice.js").Voice} Voice */
/** @typedef {import("./voice.js").VoiceLimits} VoiceLimits */

let lastId = 0;

/**
 * @typedef {Object} RefAudioPlayerOptions
 * @property {VoiceLimits} limits
 * @property {() => string} [label] names the group
 * @property {(voice: Voice | null) => void} [onChange] the visitor chose or removed a voice
 *
 * @typedef {{readonly voice: Voice | null, set: (voice: Voice | null) => void, reset: () => Promise<void>,
 *   close: () => void}} RefAudioPlayer `set` emits no event; `reset` takes the server's own voice
 */

/**
 * @param {HTMLElement} el
 * @param {RefAudioPlayerOptions} options
 * @returns {RefAudioPlayer}
 */
export function mountRefAudioPlayer(el, { limits, label = () => t("voice.label"), onChange }) {
  /** @type {Voice | null} */
  let voice = null;
  const parts = buildParts();
  const player = mountSoundPlayer(parts.player, { label: () => voice?.name ?? label() });
  el.classList.add("voice-box");
  el.setAttribute("role", "group");
  fill(el, parts.nodes);

  const draw = () => {
    el.setAttribute("aria-label", label());
    drawVoice(parts, voice);
    drawTexts(parts, limits, voice !== null);
  };
  /** @param {Voice | null} next */
  const show = (next) => {
    voice = next;
    tell(parts, null, limits);
    if (voice) player.load(voice.samples, VOICE_RATE_HZ);
    else player.stop();
    draw();
  };
  /** The last wish counts; what an earlier one brings later is dropped. */
  let wish = 0;
  /** @param {() => Promise<Voice | null>} load */
  const take = async (load) => {
    const mine = ++wish;
    el.setAttribute("aria-busy", "true");
    try {
      const loaded = await load();
      if (mine !== wish) return;
      show(loaded);
      onChange?.(loaded);
      if (!loaded) setText(parts.problem, t("voice.no_default"));
    } catch (error) {
      if (mine === wish) tell(parts, error, limits);
    } finally {
      if (mine === wish) el.removeAttribute("aria-busy");
    }
  };
  const remove = () => {
    wish += 1;
    show(null);
    onChange?.(null);
    parts.choose.focus();
  };
  const ends = [
    ...listenForFiles(el, parts, (file) => void take(() => readVoiceFile(file, limits))),
    on(parts.reset, "click", () => void take(loadDefaultVoice)),
    on(parts.remove, "click", remove),
    listenForLibrary(parts, (load) => void take(load)),
    onLangChange(draw),
  ];
  draw();
  void fillLibrary(parts.library);

  return {
    get voice() {
      return voice;
    },
    set(next) {
      wish += 1;
      el.removeAttribute("aria-busy");
      show(next);
    },
    reset: () => take(loadDefaultVoice),
    close() {
      player.close();
      ends.forEach((end) => end());
    },
  };
}

/** @typedef {ReturnType<typeof buildParts>} Parts */

function buildParts() {
  const id = `voice-${++lastId}`;
  const name = h("span", { class: "voice-name" });
  const player = h("div", {});
  const choose = h("button", { type: "button", class: "button", "aria-describedby": `${id}-hint` });
  const file = h("input", { type: "file", accept: "audio/*,video/*", hidden: true, tabindex: -1 });
  const reset = h("button", { type: "button", class: "button button-quiet" });
  const remove = h("button", { type: "button", class: "button button-quiet" });
  const library = h("select", { class: "voice-library" });
  const hint = h("p", { class: "hint", id: `${id}-hint` });
  const problem = h("p", { class: "field-error", role: "alert" });
  const loaded = h("div", { class: "stack-tight" }, name, player);
  const actions = h("div", { class: "row voice-actions" }, choose, file, reset, library, remove);
  const nodes = [loaded, actions, hint, problem];
  return { nodes, loaded, name, player, choose, file, reset, remove, library, hint, problem };
}

/** @param {Parts} parts @param {Voice | null} voice */
function drawVoice(parts, voice) {
  parts.loaded.hidden = voice === null;
  parts.remove.hidden = voice === null;
  parts.reset.hidden = voice?.origin === "default";
  if (!voice) return;
  const name = voice.origin === "default" ? t("voice.default_name") : voice.name;
  setText(parts.name, t("voice.named", { name, s: formatNumber(voiceLengthS(voice), 1) }));
}

/** @param {Parts} parts @param {VoiceLimits} limits @param {boolean} hasVoice */
function drawTexts(parts, limits, hasVoice) {
  fill(parts.choose, icon("upload"), t(hasVoice ? "voice.other_file" : "voice.choose"));
  fill(parts.reset, icon("retry"), t("voice.use_default"));
  fill(parts.remove, icon("trash"), t("common.remove"));
  setText(parts.hint, t("voice.hint", limitTexts(limits)));
  parts.library.setAttribute("aria-label", t("voice.library"));
  const [first] = parts.library.options;
  if (first) first.textContent = t("voice.library");
}

/** @param {VoiceLimits} limits */
function limitTexts({ minS, maxS, maxFileBytes }) {
  return { min: formatNumber(minS, 1), max: formatNumber(maxS), size: formatBytes(maxFileBytes) };
}

/**
 * @param {Parts} parts
 * @param {unknown} error null clears
 * @param {VoiceLimits} limits
 */
function tell({ problem }, error, limits) {
  if (error === null) return setText(problem, "");
  if (error instanceof VoiceError) {
    return setText(problem, t(`voice.problem_${error.code}`, { ...limitTexts(limits), s: formatNumber(error.lengthS, 1) }));
  }
  const { title, nextStep } = problemText(/** @type {{code?: string}} */ (error));
  setText(problem, `${title} ${nextStep}`);
}

/**
 * @param {HTMLElement} el
 * @param {Parts} parts
 * @param {(file: File) => void} take
 */
function listenForFiles(el, { choose, file }, take) {
  /** @param {FileList | null | undefined} files */
  const first = (files) => {
    if (files?.[0]) take(files[0]);
  };
  return [
    on(choose, "click", () => file.click()),
    on(file, "change", () => {
      first(file.files);
      file.value = ""; // so that the same file can be chosen again
    }),
    on(el, "dragover", (/** @type {DragEvent} */ event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      el.classList.add("is-drop-target");
    }),
    on(el, "dragleave", () => el.classList.remove("is-drop-target")),
    on(el, "drop", (/** @type {DragEvent} */ event) => {
      el.classList.remove("is-drop-target");
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      event.stopPropagation();
      first(event.dataTransfer.files);
    }),
  ];
}

/**
 * @param {Parts} parts
 * @param {(load: () => Promise<Voice>) => void} take
 */
function listenForLibrary({ library }, take) {
  return on(library, "change", () => {
    const option = library.selectedOptions[0];
    library.selectedIndex = 0;
    if (!option?.value) return;
    take(() => loadLibraryVoice({ id: option.value, name: option.textContent ?? "", duration_ms: 0 }));
  });
}

/** @param {HTMLSelectElement} library stays hidden while it would be empty */
async function fillLibrary(library) {
  library.hidden = true;
  const entries = await listLibraryVoices().catch(() => []);
  fill(
    library,
    h("option", { value: "" }, t("voice.library")),
    entries.map(({ id, name }) => h("option", { value: id }, name)),
  );
  library.hidden = entries.length === 0;
}
