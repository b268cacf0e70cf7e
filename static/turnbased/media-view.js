/** Views of attachments, in messages and as chips, and the editor of a question. */

import { t } from "../shared/texts.js";
import { html, icon, iconButton, live, nothing, textButton } from "../shared/lit.js";
import { makeSoundPlayer } from "../shared/sound-player.js";
import { isComposed, isSendKey } from "./conversation.js";
import { fileProblemWords, partAbout, partFile, soundLengthS } from "./attachments.js";

/** @import { Sound } from "../shared/sound-player.js" */
/** @import { MediaLimits, MediaPart } from "../../types/chat.js" */
/** @import { TrayProblem } from "./attachments.js" */

const ICONS = { audio: "wave", image: "image", video: "film" };

const partName = (/** @type {MediaPart} */ part) => part.name || t(`chat.kind_${part.type}`);

function blobOf(/** @type {MediaPart} */ part) {
  const { bytes, mimeType } = partFile(part);
  return new Blob([bytes], { type: mimeType });
}

/** Players are created once per content and reused across redraws. @typedef {ReturnType<typeof createShelf>} Shelf */
export function createShelf() {
  /** @type {Map<object, {made: any, end: () => void}>} `any`: an address or a player */ const kept = new Map();
  /** @template Made @param {object} content @param {() => Made} make @param {(made: Made) => void} end @returns {Made} */
  const get = (content, make, end) => {
    const known = kept.get(content);
    if (known) return known.made;
    const made = make();
    kept.set(content, { made, end: () => end(made) });
    return made;
  };
  return {
    /** @param {MediaPart} part @returns {string} object URL of its file */
    url: (part) => get(part, () => URL.createObjectURL(blobOf(part)), URL.revokeObjectURL),
    /** @param {object} content @param {() => Sound} sound */
    player: (content, sound) =>
      get(
        content,
        () => makeSoundPlayer(sound()),
        (player) => player.close(),
      ),
    /** @param {readonly unknown[]} contents all others are released */
    keepOnly(contents) {
      for (const [content, { end }] of kept) {
        if (contents.includes(content)) continue;
        end();
        kept.delete(content);
      }
    },
  };
}

/** @param {MediaPart} part @returns {Sound} */
const soundOf = (part) => ({ file: () => blobOf(part), durationS: soundLengthS(part), label: () => partName(part) });

export function mediaView(/** @type {MediaPart} */ part, /** @type {Shelf} */ shelf) {
  if (part.type === "audio") return html`<div class="media media-sound">${shelf.player(part, () => soundOf(part)).node}</div>`;
  const url = shelf.url(part);
  const name = partName(part);
  if (part.type === "image") {
    return html`<a class="media media-image" href=${url} target="_blank" rel="noopener"
      ><img src=${url} alt=${name} loading="lazy" width=${part.widthPx ?? nothing} height=${part.heightPx ?? nothing}
    /></a>`;
  }
  return html`<figure class="media media-video">
    <video
      src=${url}
      controls
      preload="none"
      playsinline
      aria-label=${name}
      poster=${part.poster ? `data:image/jpeg;base64,${part.poster}` : nothing}
    ></video>
    <figcaption class="small">${name} · ${partAbout(part)}</figcaption>
  </figure>`;
}

/** @param {MediaPart} part @param {Shelf} shelf @param {{picturesPerS: number, onRemove: () => void}} options */
export function chipView(part, shelf, { picturesPerS, onRemove }) {
  const name = partName(part);
  const words = html`<span class="chip-words"
    ><span class="chip-name">${name}</span><span class="small soft">${partAbout(part, picturesPerS)}</span></span
  >`;
  return html`<li class="chip" data-kind=${part.type}>
    ${part.type === "audio" ? shelf.player(part, () => soundOf(part)).node : [preview(part, shelf), words]}
    ${iconButton("close", t("common.remove"), onRemove, { label: t("chat.remove_file", { name }) })}
  </li>`;
}

function preview(/** @type {MediaPart} */ part, /** @type {Shelf} */ shelf) {
  const source = part.type === "image" ? shelf.url(part) : part.poster && `data:image/jpeg;base64,${part.poster}`;
  return source
    ? html`<img class="chip-picture" src=${source} alt="" />`
    : html`<span class="chip-picture">${icon(ICONS[part.type])}</span>`;
}

// Editor of an earlier question: text and attachments.

const MOST_ROWS = 12;

/**
 * @param {string} text
 * @param {readonly MediaPart[]} media
 * @param {{draw: () => void, isBusy: () => boolean, onSend: (text: string, media: readonly MediaPart[]) => void,
 *   onCancel: () => void}} options `isBusy`: an answer is pending, and no other question can be asked
 * @returns {() => unknown} the view
 */
export function openQuestionEditor(text, media, { draw, isBusy, onSend, onCancel }) {
  const shelf = createShelf();
  const rows = Math.min(MOST_ROWS, text.split("\n").length + 1);
  let words = text;
  let parts = [...media];
  const isOff = () => isBusy() || (words.trim() === "" && parts.length === 0);
  const submit = () => {
    if (isOff()) return;
    shelf.keepOnly([]);
    onSend(words, parts);
  };
  const cancel = () => {
    shelf.keepOnly([]);
    onCancel();
  };
  const remove = (/** @type {MediaPart} */ part) => {
    parts = parts.filter((one) => one !== part);
    shelf.keepOnly(parts);
    draw();
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && !isComposed(event)) {
      event.stopPropagation();
      cancel();
    }
    if (!isSendKey(event)) return;
    event.preventDefault();
    submit();
  };
  const onInput = (/** @type {{target: HTMLTextAreaElement}} */ { target }) => {
    words = target.value;
    draw();
  };
  return () =>
    html`<div class="question-editor stack-tight">
      <ul class="chips" ?hidden=${parts.length === 0}>
        ${parts.map((part) => chipView(part, shelf, { picturesPerS: 1, onRemove: () => remove(part) }))}
      </ul>
      <textarea
        dir="auto"
        aria-label=${t("chat.edit")}
        rows=${rows}
        .value=${live(words)}
        @input=${onInput}
        @keydown=${onKey}
      ></textarea>
      <p class="small soft">${t("chat.edit_hint")}</p>
      <div class="row">
        ${textButton(t("chat.ask_again"), submit, { style: "button-primary", isOff: isOff() })}
        ${textButton(t("common.cancel"), cancel)}
      </div>
    </div>`;
}

// Views of files being read, and of problems.

/** @typedef {{file: File, abort: AbortController, done: number | null}} Reading */

/** @param {TrayProblem} problem @param {MediaLimits} limits @param {() => void} onClose */
export const problemView = (problem, limits, onClose) =>
  html`<div class="notice tray-problem" data-kind="bad" data-code=${problem.code}>
    <p>${fileProblemWords(problem, limits)}</p>
    ${iconButton("close", t("common.close"), onClose)}
  </div>`;

export const readingView = (/** @type {Reading} */ { file, abort, done }) =>
  html`<li class="chip" data-kind="reading">
    <span class="spinner"></span
    ><span class="chip-words"
      ><span class="chip-name">${file.name}</span
      ><progress max="1" value=${done ?? nothing} aria-label=${t("chat.reading", { name: file.name })}></progress></span
    >${iconButton("close", t("common.cancel"), () => abort.abort())}
  </li>`;
