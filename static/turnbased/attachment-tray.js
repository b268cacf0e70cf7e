// @ts-check
/**
 * The attachments of the question that is being written: chips, progress while files are read, problems in words.
 */

import { fill, h, icon, on } from "../shared/dom.js";
import { formatBytes, formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { fitsRequest } from "./media-rules.js";
import { wireChars } from "./media-part.js";
import { makeChip } from "./media-view.js";

/** @typedef {import("./media-part.js").MediaPart} MediaPart */
/** @typedef {import("./media-rules.js").MediaLimits} MediaLimits */

const S_PER_MINUTE = 60;

/** Loaded with the first file. */
const loadReaders = () => Promise.all([import("./media-reader.js"), import("./video-look.js")]);

/**
 * @typedef {Object} TrayOptions
 * @property {MediaLimits} limits
 * @property {() => number} sentChars Base64 that is sent along anyway: of the conversation so far
 * @property {() => number} picturesPerS
 * @property {(parts: readonly MediaPart[]) => void} onChange
 *
 * @typedef {{code: string, fileName: string, kind: string | null}} TrayProblem
 * @typedef {{file: File, abort: AbortController, bar: HTMLProgressElement}} Reading
 */

/**
 * @param {HTMLElement} el
 * @param {TrayOptions} options
 */
export function mountAttachmentTray(el, options) {
  /** @type {MediaPart[]} */
  let parts = [];
  let pendingCount = 0; // lists of files that are read
  /** @type {Reading[]} */
  let readings = [];
  /** @type {TrayProblem[]} */
  let problems = [];
  /** Made once each. @type {Map<MediaPart, import("./media-view.js").Shown>} */
  const chips = new Map();
  const list = h("ul", { class: "chips" });
  const alerts = h("div", { class: "tray-problems", role: "alert" });
  el.classList.add("tray");
  fill(el, list, alerts);

  const draw = () => {
    for (const [part, chip] of chips) {
      if (parts.includes(part)) continue;
      chip.close();
      chips.delete(part);
    }
    const shown = parts.map((part) => {
      const chip = chips.get(part) ?? makeChip(part, { picturesPerS: options.picturesPerS(), onRemove: () => remove(part) });
      chips.set(part, chip);
      return chip.node;
    });
    fill(list, shown, readings.map(readingNode));
    list.hidden = list.childElementCount === 0;
    fill(
      alerts,
      problems.map((problem) => problemNode(problem, options.limits, () => forget(problem))),
    );
  };
  const tell = () => {
    draw();
    options.onChange(parts);
  };
  /** @param {MediaPart} part */
  const remove = (part) => {
    const index = parts.indexOf(part);
    parts = parts.filter((one) => one !== part);
    problems = [];
    tell();
    const next = list.querySelectorAll(".chip button:last-child")[Math.min(index, parts.length - 1)];
    if (next instanceof HTMLElement) next.focus();
  };
  /** @param {TrayProblem} problem */
  const forget = (problem) => {
    problems = problems.filter((one) => one !== problem);
    draw();
  };
  /** @param {string} code @param {string} fileName @param {string | null} [kind] */
  const complain = (code, fileName, kind = null) => void (problems = [...problems, { code, fileName, kind }]);
  /** @param {readonly MediaPart[]} added */
  const addParts = (added) => {
    for (const part of added) {
      const used = options.sentChars() + wireChars(parts);
      if (parts.length >= options.limits.itemsMax) complain("too_many", part.name);
      else if (!fitsRequest(used, part.data.length, options.limits)) complain("request_big", part.name);
      else parts = [...parts, part];
    }
    tell();
  };
  /** @param {Reading} reading */
  const end = (reading) => void (readings = readings.filter((one) => one !== reading));
  /** @param {File} file */
  const read = async (file) => {
    const reading = beginReading(file);
    readings = [...readings, reading];
    draw();
    const [{ MediaError, readMedia }, { lookAtVideo }] = await loadReaders();
    try {
      const part = await readMedia(file, {
        limits: options.limits,
        lookAtVideo,
        signal: reading.abort.signal,
        onProgress: (done) => void (reading.bar.value = done),
      });
      end(reading);
      if (!reading.abort.signal.aborted) addParts([part]);
    } catch (error) {
      end(reading);
      if (error instanceof MediaError) complain(error.code, file.name, error.kind);
      else if (!reading.abort.signal.aborted) complain("unreadable", file.name);
      draw();
      options.onChange(parts);
    }
  };
  onLangChange(() => {
    for (const chip of chips.values()) chip.close();
    chips.clear();
    draw();
  });
  draw();

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

/**
 * @param {TrayProblem} problem
 * @param {MediaLimits} limits
 * @param {() => void} onClose
 */
function problemNode(problem, limits, onClose) {
  const close = h(
    "button",
    { type: "button", class: "button button-quiet button-icon", "aria-label": t("common.close") },
    icon("close"),
  );
  on(close, "click", onClose);
  return h(
    "div",
    { class: "notice tray-problem", dataset: { kind: "bad", code: problem.code } },
    h("p", {}, problemWords(problem, limits)),
    close,
  );
}

/** @param {File} file @returns {Reading} */
function beginReading(file) {
  const bar = h("progress", { max: 1, "aria-label": t("chat.reading", { name: file.name }) });
  return { file, abort: new AbortController(), bar };
}

/** @param {Reading} reading */
function readingNode({ file, abort, bar }) {
  const cancel = h(
    "button",
    { type: "button", class: "button button-quiet button-icon", "aria-label": t("common.cancel") },
    icon("close"),
  );
  on(cancel, "click", () => abort.abort());
  const words = h("span", { class: "chip-words" }, h("span", { class: "chip-name" }, file.name), bar);
  return h("li", { class: "chip", dataset: { kind: "reading" } }, h("span", { class: "spinner" }), words, cancel);
}

/**
 * Names the limit and what to do.
 *
 * @param {TrayProblem} problem
 * @param {MediaLimits} limits
 */
function problemWords({ code, fileName, kind }, limits) {
  const name = fileName || t(`chat.kind_${kind ?? "audio"}`);
  return t(`chat.file_${code}`, {
    name,
    minutes: minutes(kind === "video" ? limits.videoMaxS : limits.audioMaxS),
    video: formatBytes(limits.videoMaxBytes),
    image: formatBytes(limits.imageMaxBytes),
    side: formatNumber(limits.imageMaxSidePx),
    mega: formatNumber(limits.imageMaxPixels / 1e6),
    request: formatBytes(limits.requestMaxBytes),
    count: formatNumber(limits.itemsMax),
  });
}

/** @param {number} seconds */
function minutes(seconds) {
  return formatNumber(seconds / S_PER_MINUTE, seconds % S_PER_MINUTE === 0 ? 0 : 1);
}

/** The limits in one line, said before a file is chosen. @param {MediaLimits} limits */
export function limitWords(limits) {
  return t("chat.limits", {
    minutes: minutes(limits.audioMaxS),
    image: formatBytes(limits.imageMaxBytes),
    video: formatBytes(limits.videoMaxBytes),
    request: formatBytes(limits.requestMaxBytes),
  });
}
