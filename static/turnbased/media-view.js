// @ts-check
/**
 * Shows attachments: in a message in full, as a chip while they wait to be sent.
 */

import { h, icon } from "../shared/dom.js";
import { formatBytes, formatClock } from "../shared/formats.js";
import { t, tn } from "../shared/i18n.js";
import { makeClipPlayer } from "./clip-player.js";
import { partBytes, partFile, soundLengthS } from "./media-part.js";
import { videoPictures } from "./media-rules.js";

/** @typedef {import("./media-part.js").MediaPart} MediaPart */
/** @typedef {{node: HTMLElement, close: () => void}} Shown */

const ICONS = { audio: "wave", image: "image", video: "film" };

/** @param {MediaPart} part */
function partName(part) {
  return part.name || t(`chat.kind_${part.type}`);
}

/**
 * What is worth knowing of it, in a few words.
 *
 * @param {MediaPart} part
 * @param {number} picturesPerS
 */
function partAbout(part, picturesPerS = 1) {
  const size = formatBytes(partBytes(part));
  if (part.type === "audio") return formatClock(soundLengthS(part));
  if (part.type === "image") return part.widthPx ? `${part.widthPx} × ${part.heightPx} · ${size}` : size;
  if (!part.durationS) return size;
  return `${formatClock(part.durationS)} · ${tn("chat.pictures", videoPictures(part.durationS, picturesPerS))} · ${size}`;
}

/** @param {MediaPart} part @returns {Blob} */
function blobOf(part) {
  const { bytes, mimeType } = partFile(part);
  return new Blob([bytes], { type: mimeType });
}

/**
 * An attachment inside of a message.
 *
 * @param {MediaPart} part
 * @returns {Shown}
 */
export function makeMedia(part) {
  if (part.type === "audio") {
    const label = () => partName(part);
    const player = makeClipPlayer({ file: () => blobOf(part), durationS: soundLengthS(part), label });
    return { node: h("div", { class: "media media-sound" }, player.node), close: player.close };
  }
  const url = URL.createObjectURL(blobOf(part));
  const close = () => URL.revokeObjectURL(url);
  if (part.type === "image") {
    const picture = h("img", { src: url, alt: partName(part), loading: "lazy", width: part.widthPx, height: part.heightPx });
    const link = h("a", { class: "media media-image", href: url, target: "_blank", rel: "noopener" }, picture);
    return { node: link, close };
  }
  const video = h("video", { src: url, controls: true, preload: "none", playsinline: true, "aria-label": partName(part) });
  if (part.poster) video.poster = `data:image/jpeg;base64,${part.poster}`;
  const name = h("figcaption", { class: "small" }, `${partName(part)} · ${partAbout(part)}`);
  return { node: h("figure", { class: "media media-video" }, video, name), close };
}

/**
 * An attachment that waits to be sent.
 *
 * @param {MediaPart} part
 * @param {{picturesPerS: number, onRemove: () => void}} options
 * @returns {Shown}
 */
export function makeChip(part, { picturesPerS, onRemove }) {
  const name = partName(part);
  const remove = h(
    "button",
    {
      type: "button",
      class: "button button-quiet button-icon",
      "aria-label": t("chat.remove_file", { name }),
      title: t("common.remove"),
    },
    icon("close"),
  );
  remove.addEventListener("click", onRemove);
  const preview = makePreview(part);
  const words = h(
    "span",
    { class: "chip-words" },
    h("span", { class: "chip-name" }, name),
    h("span", { class: "small soft" }, partAbout(part, picturesPerS)),
  );
  const node = h(
    "li",
    { class: "chip", dataset: { kind: part.type } },
    preview.node,
    part.type === "audio" ? null : words,
    remove,
  );
  return { node, close: preview.close };
}

/** @param {MediaPart} part @returns {Shown} */
function makePreview(part) {
  if (part.type === "audio") {
    const player = makeClipPlayer({ file: () => blobOf(part), durationS: soundLengthS(part), label: () => partName(part) });
    return { node: player.node, close: player.close };
  }
  if (part.type === "image") {
    const url = URL.createObjectURL(blobOf(part));
    return { node: h("img", { class: "chip-picture", src: url, alt: "" }), close: () => URL.revokeObjectURL(url) };
  }
  const node = part.poster
    ? h("img", { class: "chip-picture", src: `data:image/jpeg;base64,${part.poster}`, alt: "" })
    : h("span", { class: "chip-picture" }, icon(ICONS[part.type]));
  return { node, close: () => {} };
}
