/** Attachments of the message being written: chips, progress of reading, problems. */

import { late } from "../shared/async.js";
import { html, mountView, repeat, toastProblem } from "../shared/lit.js";
import { neededPart } from "../shared/late-parts.js";
import { codeOf } from "../shared/texts.js";
import { fitsRequest, wireChars } from "./conversation.js";

/** @import { MediaLimits, MediaPart } from "../../types/chat.js" */
/** @import { TrayProblem } from "./attachments.js" */
/** @import { Reading } from "./media-view.js" */

const loadInput = late(() => import("./media-input.js"));
const loadViews = late(
  () => import("./media-view.js"),
  ({ chipView, createShelf, problemView, readingView }) => ({ chipView, problemView, readingView, shelf: createShelf() }),
);

/**
 * @param {HTMLElement} el
 * @param {{limits: MediaLimits, sentChars: () => number, picturesPerS: () => number, onChange: () => void}} options `sentChars`:
 *   Base64 characters of the conversation so far and of the voice sample, which are sent as well
 */
export function mountAttachmentTray(el, options) {
  /** @type {MediaPart[]} */ let parts = [];
  let pendingCount = 0; // lists of files being read
  /** @type {Reading[]} */ let readings = [];
  /** @type {TrayProblem[]} */ let problems = [];
  const viewsFor = neededPart(loadViews, () => draw());
  el.classList.add("tray");
  const draw = mountView(el, () => {
    const picturesPerS = options.picturesPerS();
    const views = viewsFor(parts.length + readings.length + problems.length > 0);
    views?.shelf.keepOnly(parts);
    return html`<ul class="chips" ?hidden=${parts.length + readings.length === 0}>
        ${repeat(
          parts,
          (part) => part,
          (part) => views?.chipView(part, views.shelf, { picturesPerS, onRemove: () => remove(part) }),
        )}${readings.map((reading) => views?.readingView(reading))}
      </ul>
      <div class="tray-problems" role="alert">
        ${problems.map((problem) => views?.problemView(problem, options.limits, () => forget(problem)))}
      </div>`;
  });
  const changed = () => {
    draw();
    options.onChange();
  };
  const remove = (/** @type {MediaPart} */ part) => {
    parts = parts.filter((one) => one !== part);
    problems = [];
    changed();
  };
  const forget = (/** @type {TrayProblem} */ problem) => {
    problems = problems.filter((one) => one !== problem);
    draw();
  };
  /** @param {string} code @param {TrayProblem["file"]} file */
  const addProblem = (code, file) => void (problems = [...problems, { code, file }]);
  const addParts = (/** @type {readonly MediaPart[]} */ added) => {
    for (const part of added) {
      const used = options.sentChars() + wireChars(parts);
      const file = { name: part.name, type: part.mimeType };
      if (parts.length >= options.limits.itemsMax) addProblem("too_many", file);
      else if (!fitsRequest(used, part.data.length, options.limits)) addProblem("request_big", file);
      else parts = [...parts, part];
    }
    changed();
  };
  /** @param {Reading} reading */
  const end = (reading) => void (readings = readings.filter((one) => one !== reading));
  const read = async (/** @type {File} */ file) => {
    /** @type {Reading} */ const reading = { file, abort: new AbortController(), done: null };
    readings = [...readings, reading];
    draw();
    try {
      const { readMedia } = await loadInput();
      const part = await readMedia(file, {
        limits: options.limits,
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
      const code = codeOf(error, "unreadable");
      if (code === "missing_part") toastProblem(error);
      else if (!reading.abort.signal.aborted) addProblem(code, file);
      changed();
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
    /** Reads files one after the other, in order. @param {Iterable<File>} files */
    async addFiles(files) {
      problems = [];
      pendingCount += 1;
      for (const file of files) await read(file);
      pendingCount -= 1;
      options.onChange();
    },
    addParts,
    set(/** @type {readonly MediaPart[]} */ next) {
      readings.forEach(({ abort }) => abort.abort());
      problems = [];
      parts = [...next];
      draw();
    },
  };
}
