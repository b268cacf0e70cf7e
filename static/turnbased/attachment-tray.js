// @ts-check
/** The attachments of the question that is being written: chips, progress while files are read, problems in words. */

import { t } from "../shared/texts.js";
import { late } from "../shared/late.js";
import { html, iconButton, mountView, nothing, repeat } from "../shared/lit.js";
import { toastProblem } from "../shared/notice.js";
import { fitsRequest, wireChars, fileProblemWords } from "./media-part.js";

/** @import { MediaLimits, MediaPart } from "../../types/chat.js" */
/** @import { TrayProblem } from "./media-part.js" */

const loadReaders = () => import("./media-input.js");
const loadChips = late(
  () => import("./media-view.js"),
  ({ chipView, createShelf }) => ({ chipView, shelf: createShelf() }),
);

/**
 * @typedef {Object} TrayOptions
 * @property {MediaLimits} limits
 * @property {() => number} sentChars Base64 that is sent along anyway: of the conversation so far
 * @property {() => number} picturesPerS
 * @property {(parts: readonly MediaPart[]) => void} onChange
 *
 * @typedef {{file: File, abort: AbortController, done: number | null}} Reading
 */

/** @param {HTMLElement} el @param {TrayOptions} options */
export function mountAttachmentTray(el, options) {
  /** @type {MediaPart[]} */
  let parts = [];
  let pendingCount = 0; // lists of files that are read
  /** @type {Reading[]} */
  let readings = [];
  /** @type {TrayProblem[]} */
  let problems = [];
  /** @type {Awaited<ReturnType<typeof loadChips>> | null} */
  let chips = null;
  const needChips = async () => {
    if (chips || parts.length === 0) return;
    chips = await loadChips();
    draw();
  };
  el.classList.add("tray");
  const draw = mountView(el, () => {
    const picturesPerS = options.picturesPerS();
    chips?.shelf.keepOnly(parts);
    needChips().catch(toastProblem);
    return html`<ul class="chips" ?hidden=${parts.length + readings.length === 0}>
        ${repeat(
          parts,
          (part) => part,
          (part) => chips?.chipView(part, chips.shelf, { picturesPerS, onRemove: () => remove(part) }),
        )}${readings.map(readingView)}
      </ul>
      <div class="tray-problems" role="alert">
        ${problems.map((problem) => problemView(problem, options.limits, () => forget(problem)))}
      </div>`;
  });
  const changed = () => {
    draw();
    options.onChange(parts);
  };
  /** @param {MediaPart} part */
  const remove = (part) => {
    parts = parts.filter((one) => one !== part);
    problems = [];
    changed();
  };
  /** @param {TrayProblem} problem */
  const forget = (problem) => {
    problems = problems.filter((one) => one !== problem);
    draw();
  };
  /** @param {string} code @param {string} fileName @param {string | null} [kind] */
  const addProblem = (code, fileName, kind = null) => void (problems = [...problems, { code, fileName, kind }]);
  /** @param {readonly MediaPart[]} added */
  const addParts = (added) => {
    for (const part of added) {
      const used = options.sentChars() + wireChars(parts);
      if (parts.length >= options.limits.itemsMax) addProblem("too_many", part.name);
      else if (!fitsRequest(used, part.data.length, options.limits)) addProblem("request_big", part.name);
      else parts = [...parts, part];
    }
    changed();
  };
  /** @param {Reading} reading */
  const end = (reading) => void (readings = readings.filter((one) => one !== reading));
  /** @param {File} file */
  const read = async (file) => {
    /** @type {Reading} */
    const reading = { file, abort: new AbortController(), done: null };
    readings = [...readings, reading];
    draw();
    const { MediaError, lookAtVideo, readMedia } = await loadReaders();
    try {
      const part = await readMedia(file, {
        limits: options.limits,
        lookAtVideo,
        signal: reading.abort.signal,
        onProgress(done) {
          reading.done = done;
          draw();
        },
      });
      end(reading);
      if (!reading.abort.signal.aborted) addParts([part]);
    } catch (error) {
      end(reading);
      if (error instanceof MediaError) addProblem(error.code, file.name, error.kind);
      else if (!reading.abort.signal.aborted) addProblem("unreadable", file.name);
      draw();
      options.onChange(parts);
    }
  };

  return {
    get parts() {
      return /** @type {readonly MediaPart[]} */ (parts);
    },
    get hasProblem() {
      return problems.length > 0;
    },
    get isReading() {
      return pendingCount > 0;
    },
    /** Read files one after the other, in their order. @param {Iterable<File>} files */
    async addFiles(files) {
      problems = [];
      pendingCount += 1;
      for (const file of files) await read(file);
      pendingCount -= 1;
      options.onChange(parts);
    },
    addParts,
    /** @param {readonly MediaPart[]} next */
    set(next) {
      readings.forEach(({ abort }) => abort.abort());
      problems = [];
      parts = [...next];
      draw();
    },
  };
}

/** @param {TrayProblem} problem @param {MediaLimits} limits @param {() => void} onClose */
const problemView = (problem, limits, onClose) =>
  html`<div class="notice tray-problem" data-kind="bad" data-code=${problem.code}>
    <p>${fileProblemWords(problem, limits)}</p>
    ${iconButton("close", t("common.close"), onClose)}
  </div>`;

/** @param {Reading} reading */
const readingView = ({ file, abort, done }) =>
  html`<li class="chip" data-kind="reading">
    <span class="spinner"></span
    ><span class="chip-words"
      ><span class="chip-name">${file.name}</span
      ><progress max="1" value=${done ?? nothing} aria-label=${t("chat.reading", { name: file.name })}></progress></span
    >${iconButton("close", t("common.cancel"), () => abort.abort())}
  </li>`;
